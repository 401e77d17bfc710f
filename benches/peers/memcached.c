/* memcached through libmemcached: one mget for a batch; sets in a pipeline without replies, confirmed at the end. */
#include <libmemcached/memcached.h>

#include "worker.h"

static memcached_st *server;
static size_t row_bytes;

static void check(memcached_return_t status) {
    if (memcached_failed(status)) fail("memcached", memcached_last_error_message(server));
}

static void fill(const struct task *task, const uint64_t *keys, size_t count, const float *values) {
    for (size_t i = 0; i < count; i++) {
        const char *row = (const char *)&values[i * task->dim];
        check(memcached_set(server, (const char *)&keys[i], sizeof *keys, row, row_bytes, 0, 0));
    }
    check(memcached_flush_buffers(server));
    /* One connection, served in order: when it answers this, it has done all before. */
    uint32_t flags;
    size_t length;
    memcached_return_t status;
    char *last = memcached_get(server, (const char *)&keys[count - 1], sizeof *keys, &length, &flags, &status);
    check(status);
    if (length != row_bytes || memcmp(last, &values[(count - 1) * task->dim], row_bytes)) {
        fail("memcached", "the last row is not what was set");
    }
    free(last);
}

static void pull(const struct task *task, const uint64_t *keys, float *out) {
    static const char **words;
    static size_t *lengths;
    if (!words) {
        words = malloc(task->batch * sizeof *words);
        lengths = malloc(task->batch * sizeof *lengths);
    }
    for (size_t i = 0; i < task->batch; i++) {
        words[i] = (const char *)&keys[i];
        lengths[i] = sizeof *keys;
    }
    check(memcached_mget(server, words, lengths, task->batch));
    memcached_result_st result;
    if (!memcached_result_create(server, &result)) fail("memcached", "no memory");
    memcached_return_t status;
    size_t at = 0;
    while (memcached_fetch_result(server, &result, &status)) {
        /* Answers come in the order of the keys. */
        if (at == task->batch || memcmp(memcached_result_key_value(&result), &keys[at], sizeof *keys)) {
            fail("memcached", "a row is missing");
        }
        if (memcached_result_length(&result) != row_bytes) fail("memcached", "a row has another length");
        memcpy(&out[at++ * task->dim], memcached_result_value(&result), row_bytes);
    }
    memcached_result_free(&result);
    if (at != task->batch) fail("memcached", "a row is missing");
}

static void push(const struct task *task, const uint64_t *keys, const float *gradients) {
    fill(task, keys, task->batch, gradients);
}

int main(int count, char **words) {
    struct task task = parse(count, words);
    row_bytes = task.dim * sizeof(float);
    server = memcached_create(NULL);
    if (!server) fail("memcached", "no memory");
    check(memcached_server_add(server, "127.0.0.1", (in_port_t)task.port));
    /* Keys are 8 bytes as they are: only the binary protocol takes them. */
    check(memcached_behavior_set(server, MEMCACHED_BEHAVIOR_BINARY_PROTOCOL, 1));
    check(memcached_behavior_set(server, MEMCACHED_BEHAVIOR_TCP_NODELAY, 1));
    check(memcached_behavior_set(server, MEMCACHED_BEHAVIOR_BUFFER_REQUESTS, 1));
    check(memcached_behavior_set(server, MEMCACHED_BEHAVIOR_NOREPLY, 1));
    return serve(&task);
}
