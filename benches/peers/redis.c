/* Redis through hiredis: MGET and MSET of `--chunk` keys each, all of a batch in one pipeline.
 *
 * The replies are not made into hiredis's objects: its parser calls `on_string` and the others, which copy rows to
 * where they belong. That spares the client an allocation per row.
 */
#include <hiredis/hiredis.h>

#include "worker.h"

static redisContext *redis;
/* Where the reply that is being parsed goes. */
static float *rows;
static size_t row_bytes, found;

static void *on_string(const redisReadTask *task, char *text, size_t length) {
    if (task->type == REDIS_REPLY_ERROR) fail("redis", text);
    if (task->type == REDIS_REPLY_STRING) {
        if (length != row_bytes) fail("redis", "a row has another length");
        memcpy((char *)rows + (size_t)task->idx * row_bytes, text, length);
        found++;
    }
    return redis;
}

#if HIREDIS_MAJOR >= 1
typedef size_t array_length;
#else
typedef int array_length;
#endif

static void *on_array(const redisReadTask *task, array_length count) {
    (void)task, (void)count;
    return redis;
}

static void *on_integer(const redisReadTask *task, long long value) {
    (void)task, (void)value;
    return redis;
}

static void *on_nil(const redisReadTask *task) {
    (void)task;
    return redis;
}

static void no_free(void *reply) { (void)reply; }

static redisReplyObjectFunctions in_place = {
    .createString = on_string,
    .createArray = on_array,
    .createInteger = on_integer,
    .createNil = on_nil,
    .freeObject = no_free,
};

static void check(int status) {
    if (status != REDIS_OK) fail("redis", redis->errstr);
}

static void await_reply(void) {
    void *reply;
    check(redisGetReply(redis, &reply));
}

static void fill(const struct task *task, const uint64_t *keys, size_t count, const float *values) {
    const char *words[1 + 2 * task->chunk];
    size_t lengths[1 + 2 * task->chunk], commands = 0;
    words[0] = "MSET";
    lengths[0] = 4;
    for (size_t first = 0; first < count; first += task->chunk, commands++) {
        size_t here = count - first < task->chunk ? count - first : task->chunk;
        for (size_t i = 0; i < here; i++) {
            words[1 + 2 * i] = (const char *)&keys[first + i];
            lengths[1 + 2 * i] = sizeof *keys;
            words[2 + 2 * i] = (const char *)&values[(first + i) * task->dim];
            lengths[2 + 2 * i] = row_bytes;
        }
        check(redisAppendCommandArgv(redis, (int)(1 + 2 * here), words, lengths));
    }
    while (commands--) await_reply();
}

static void pull(const struct task *task, const uint64_t *keys, float *out) {
    const char *words[1 + task->chunk];
    size_t lengths[1 + task->chunk];
    words[0] = "MGET";
    lengths[0] = 4;
    for (size_t first = 0; first < task->batch; first += task->chunk) {
        size_t here = task->batch - first < task->chunk ? task->batch - first : task->chunk;
        for (size_t i = 0; i < here; i++) {
            words[1 + i] = (const char *)&keys[first + i];
            lengths[1 + i] = sizeof *keys;
        }
        check(redisAppendCommandArgv(redis, (int)(1 + here), words, lengths));
    }
    found = 0;
    for (size_t first = 0; first < task->batch; first += task->chunk) {
        rows = out + first * task->dim;
        await_reply();
    }
    if (found != task->batch) fail("redis", "a row is missing");
}

static void push(const struct task *task, const uint64_t *keys, const float *gradients) {
    static float *changed;
    size_t count = task->batch * task->dim;
    if (!task->read_modify_write) {
        fill(task, keys, task->batch, gradients);
        return;
    }
    if (!changed) changed = malloc(count * sizeof *changed);
    pull(task, keys, changed);
    for (size_t i = 0; i < count; i++) changed[i] -= LEARNING_RATE * gradients[i];
    fill(task, keys, task->batch, changed);
}

int main(int count, char **words) {
    struct task task = parse(count, words);
    row_bytes = task.dim * sizeof(float);
    redis = redisConnect("127.0.0.1", task.port);
    if (!redis || redis->err) fail("cannot connect", redis ? redis->errstr : "no memory");
    redis->reader->fn = &in_place;
    return serve(&task);
}
