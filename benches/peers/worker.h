/* What the workers in C have in common: arguments, the table's numbers, and one line each way (see protocol.py). */
#ifndef WORKER_H
#define WORKER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LEARNING_RATE 0.01f

struct task {
    size_t rows, dim, batch, batches, chunk;
    int port;
    int read_modify_write;
    const char *ready; /* what to say when all rows are there */
    uint64_t *keys;
    float *gradients;
};

/* What a system does. Each ends the process with `fail` where it cannot. */
static void fill(const struct task *task, const uint64_t *keys, size_t count, const float *values);
static void pull(const struct task *task, const uint64_t *keys, float *out);
static void push(const struct task *task, const uint64_t *keys, const float *gradients);

static void fail(const char *what, const char *why) {
    printf("error %s: %s\n", what, why ? why : "");
    fflush(stdout);
    exit(1);
}

static void *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file) fail("cannot open", path);
    if (fseek(file, 0, SEEK_END) != 0) fail("cannot seek in", path);
    *bytes = (size_t)ftell(file);
    rewind(file);
    void *data = malloc(*bytes);
    if (!data || fread(data, 1, *bytes, file) != *bytes) fail("cannot read", path);
    fclose(file);
    return data;
}

static struct task parse(int count, char **words) {
    struct task task = {0};
    size_t key_bytes = 0, gradient_bytes = 0;
    for (int i = 1; i < count; i += 2) {
        const char *name = words[i], *value = words[i + 1];
        if (i + 1 == count) fail("no value for", name);
        if (!strcmp(name, "--rows")) task.rows = strtoull(value, NULL, 10);
        else if (!strcmp(name, "--dim")) task.dim = strtoull(value, NULL, 10);
        else if (!strcmp(name, "--batch")) task.batch = strtoull(value, NULL, 10);
        else if (!strcmp(name, "--chunk")) task.chunk = strtoull(value, NULL, 10);
        else if (!strcmp(name, "--port")) task.port = atoi(value);
        else if (!strcmp(name, "--read-modify-write")) task.read_modify_write = atoi(value);
        else if (!strcmp(name, "--ready")) task.ready = value;
        else if (!strcmp(name, "--keys")) task.keys = read_file(value, &key_bytes);
        else if (!strcmp(name, "--gradients")) task.gradients = read_file(value, &gradient_bytes);
        else fail("unknown argument", name);
    }
    if (!task.rows || !task.dim || !task.batch || !task.port || !task.ready) fail("an argument is missing", NULL);
    task.batches = key_bytes / sizeof(uint64_t) / task.batch;
    if (!task.batches || gradient_bytes != task.batch * task.dim * sizeof(float)) fail("a file is too short", NULL);
    return task;
}

static void fill_table(const struct task *task) {
    uint64_t *keys = malloc(task->batch * sizeof *keys);
    float *values = malloc(task->batch * task->dim * sizeof *values);
    for (size_t first = 0; first < task->rows; first += task->batch) {
        size_t count = task->rows - first < task->batch ? task->rows - first : task->batch;
        for (size_t i = 0; i < count; i++) {
            keys[i] = first + i;
            for (size_t j = 0; j < task->dim; j++) {
                values[i * task->dim + j] = (float)((keys[i] * 31 + j * 17) % 1000) / 100000.0f;
            }
        }
        fill(task, keys, count, values);
    }
    free(keys);
    free(values);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int serve(const struct task *task) {
    char line[256], word[16];
    unsigned long first, count;
    float *out = calloc(task->batch * task->dim, sizeof *out);
    fill_table(task);
    printf("ready %s\n", task->ready);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "quit", 4)) return 0;
        if (sscanf(line, "%15s %lu %lu", word, &first, &count) != 3) fail("not understood", line);
        for (size_t batch = first; batch < first + count; batch++) {
            const uint64_t *keys = task->keys + batch % task->batches * task->batch;
            double begun = seconds();
            if (!strcmp(word, "pull")) {
                pull(task, keys, out);
                printf("%.9f ", seconds() - begun);
            } else if (!strcmp(word, "push")) {
                push(task, keys, task->gradients);
                printf("%.9f ", seconds() - begun);
            } else if (!strcmp(word, "sum")) {
                double sum = 0;
                /* What an earlier pull left must not pass for an answer. */
                memset(out, 0, task->batch * task->dim * sizeof *out);
                pull(task, keys, out);
                for (size_t i = 0; i < task->batch * task->dim; i++) sum += out[i];
                printf("%.17g ", sum);
            } else {
                fail("not understood", line);
            }
        }
        printf("\n");
        fflush(stdout);
    }
    return 0;
}

#endif
