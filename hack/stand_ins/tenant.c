/*
 * A program that uses the stand-in cards as a tenant does, and prints what it got. It links
 * libcuda.so.1 only.
 *
 *     tenant [--by link|dlsym|getproc] COMMAND...
 *
 * --by is how it finds CUDA's functions: by linking (the default), by dlsym as older runtimes do,
 * or by cuGetProcAddress as newer runtimes do. A limiter has to cover all of them. Each command
 * prints one JSON object on a line; `result` is the CUresult, 2 is CUDA_ERROR_OUT_OF_MEMORY.
 *
 *     count                       number of devices
 *     device CARD                 PCI bus ID and total memory
 *     alloc CARD MIB              cuMemAlloc
 *     managed CARD MIB            cuMemAllocManaged
 *     pitch CARD MIB              cuMemAllocPitch
 *     async CARD MIB              cuMemAllocAsync
 *     create CARD MIB             cuMemCreate
 *     info CARD                   cuMemGetInfo
 *     nvml CARD                   nvmlDeviceGetMemoryInfo; as the first command, before cuInit
 *     launch CARD SECONDS BLOCKS  launches kernels for that time; how many ended, and when it began
 *                                 on the monotonic clock
 *     graph CARD SECONDS BLOCKS   the same, by cuGraphLaunch
 *     wait                        waits for a line on standard input; ends if that has ended
 *     more                        ends if standard input has ended
 *     kill                        ends itself by SIGKILL, so that nothing is cleaned up
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int Result;
typedef unsigned long long Pointer;
enum { THREADS = 256, MIB_SHIFT = 20, AT_ONCE = 16 };

#define FUNCTIONS(X)                                                                              \
    X(cuInit, cuInit, (unsigned))                                                                 \
    X(cuDeviceGetCount, cuDeviceGetCount, (int *))                                                \
    X(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, (char *, int, int))                               \
    X(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t *, int))                                     \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (void **, int))                         \
    X(cuCtxSetCurrent, cuCtxSetCurrent, (void *))                                                 \
    X(cuCtxSynchronize, cuCtxSynchronize, (void))                                                 \
    X(cuMemAlloc, cuMemAlloc_v2, (Pointer *, size_t))                                             \
    X(cuMemAllocManaged, cuMemAllocManaged, (Pointer *, size_t, unsigned))                        \
    X(cuMemAllocPitch, cuMemAllocPitch_v2, (Pointer *, size_t *, size_t, size_t, unsigned))       \
    X(cuMemAllocAsync, cuMemAllocAsync, (Pointer *, size_t, void *))                              \
    X(cuMemCreate, cuMemCreate, (Pointer *, size_t, const void *, unsigned long long))            \
    X(cuMemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *))                                        \
    X(cuLaunchKernel, cuLaunchKernel,                                                             \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,      \
       void **, void **))                                                                         \
    X(cuGraphLaunch, cuGraphLaunch, (void *, void *))

#define DECLARE(name, symbol, parameters)                                                         \
    extern Result symbol parameters;                                                              \
    static Result(*p_##name) parameters = symbol;
FUNCTIONS(DECLARE)

static void fail(const char *what)
{
    printf("{\"error\": \"%s\"}\n", what);
    exit(3);
}

static void *found(void *address, const char *name)
{
    if (!address)
        fail(name);
    return address;
}

static void find_functions(const char *by)
{
    void *library = found(dlopen("libcuda.so.1", RTLD_NOW), "libcuda.so.1"), *address;
    Result (*get)(const char *, void **, int, uint64_t, int *);

    *(void **)&get = found(dlsym(library, "cuGetProcAddress_v2"), "cuGetProcAddress_v2");
#define FIND(name, symbol, parameters)                                                            \
    if (strcmp(by, "dlsym") == 0)                                                                 \
        address = dlsym(library, #symbol);                                                        \
    else                                                                                          \
        get(#name, &address, 12000, 0, NULL);                                                     \
    *(void **)&p_##name = found(address, #symbol);
    FUNCTIONS(FIND)
}

static Result use(int card)
{
    void *context;
    Result result = p_cuDevicePrimaryCtxRetain(&context, card);

    return result == 0 ? p_cuCtxSetCurrent(context) : result;
}

static void count(char **words)
{
    int number = 0;
    Result result = p_cuDeviceGetCount(&number);

    printf("{\"command\": \"%s\", \"result\": %d, \"count\": %d}\n", words[0], result, number);
}

static void show_device(char **words)
{
    char bus[32] = "";
    size_t bytes = 0;
    int card = atoi(words[1]);
    Result result = p_cuDeviceGetPCIBusId(bus, sizeof bus, card);

    if (result == 0)
        result = p_cuDeviceTotalMem(&bytes, card);
    printf("{\"command\": \"%s\", \"result\": %d, \"bus\": \"%s\", \"total_mib\": %zu}\n", words[0],
           result, bus, bytes >> MIB_SHIFT);
}

static Result create(int card, size_t bytes)
{
    struct { int type, handles, location, device; void *meta; unsigned char flags[16]; } what = {
        .type = 1, .location = 1, .device = card};
    Pointer handle;

    return p_cuMemCreate(&handle, bytes, &what, 0);
}

static void allocate(char **words)
{
    const char *how = words[0];
    int card = atoi(words[1]);
    size_t mib = strtoul(words[2], NULL, 10), bytes = mib << MIB_SHIFT, pitch;
    Pointer memory;
    Result result = use(card);

    if (result == 0) {
        if (strcmp(how, "alloc") == 0)
            result = p_cuMemAlloc(&memory, bytes);
        else if (strcmp(how, "managed") == 0)
            result = p_cuMemAllocManaged(&memory, bytes, 1);
        else if (strcmp(how, "pitch") == 0)
            result = p_cuMemAllocPitch(&memory, &pitch, 1 << MIB_SHIFT, mib, 4);
        else if (strcmp(how, "async") == 0)
            result = p_cuMemAllocAsync(&memory, bytes, NULL);
        else
            result = create(card, bytes);
    }
    printf("{\"command\": \"%s\", \"result\": %d}\n", how, result);
}

static void show_memory(char **words)
{
    size_t available = 0, total = 0;
    Result result = use(atoi(words[1]));

    if (result == 0)
        result = p_cuMemGetInfo(&available, &total);
    printf("{\"command\": \"%s\", \"result\": %d, \"free_mib\": %zu, \"total_mib\": %zu}\n",
           words[0], result, available >> MIB_SHIFT, total >> MIB_SHIFT);
}

static void *in_nvml(const char *name)
{
    return found(dlsym(found(dlopen("libnvidia-ml.so.1", RTLD_NOW), "NVML"), name), name);
}

static void ask_nvml(char **words)
{
    struct { unsigned long long total, available, used; } memory = {0, 0, 0};
    int (*init)(void), (*by_index)(unsigned, void **), (*get)(void *, void *), result;
    void *device;

    *(void **)&init = in_nvml("nvmlInit_v2");
    *(void **)&by_index = in_nvml("nvmlDeviceGetHandleByIndex_v2");
    *(void **)&get = in_nvml("nvmlDeviceGetMemoryInfo");
    result = init();
    if (result == 0)
        result = by_index((unsigned)atoi(words[1]), &device);
    if (result == 0)
        result = get(device, &memory);
    printf("{\"command\": \"%s\", \"result\": %d, \"used_mib\": %llu, \"total_mib\": %llu}\n",
           words[0], result, memory.used >> MIB_SHIFT, memory.total >> MIB_SHIFT);
}

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* The stand-in does not look at the function, so no module is loaded. Its graph is a number. */
static void launch(char **words)
{
    double seconds = atof(words[2]), start;
    unsigned blocks = (unsigned)atoi(words[3]), ended = 0;
    int is_graph = strcmp(words[0], "graph") == 0;
    Result result = use(atoi(words[1]));

    start = now();
    while (result == 0 && now() - start < seconds) {
        for (int i = 0; i < AT_ONCE && result == 0; i++)
            result = is_graph
                ? p_cuGraphLaunch(&blocks, NULL)
                : p_cuLaunchKernel(words, blocks, 1, 1, THREADS, 1, 1, 0, NULL, NULL, NULL);
        if (result == 0)
            result = p_cuCtxSynchronize();
        ended += result == 0 ? AT_ONCE : 0;
    }
    printf("{\"command\": \"%s\", \"result\": %d, \"count\": %u, \"at\": %.3f, "
           "\"seconds\": %.3f}\n", words[0], result, ended, start, now() - start);
}

static void wait_for_line(char **words)
{
    char line[256];

    printf("{\"command\": \"%s\", \"result\": 0}\n", words[0]);
    if (!fgets(line, sizeof line, stdin))
        exit(0);
}

static void check_for_end(char **words)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};

    if (poll(&input, 1, 0) > 0 && input.revents & POLLHUP)
        exit(0);
}

static void end(char **words)
{
    raise(SIGKILL);
}

static const struct {
    const char *name;
    int words, uses_cuda;
    void (*run)(char **words);
} commands[] = {
    {"count", 1, 1, count},       {"device", 2, 1, show_device}, {"alloc", 3, 1, allocate},
    {"managed", 3, 1, allocate},  {"pitch", 3, 1, allocate},     {"async", 3, 1, allocate},
    {"create", 3, 1, allocate},   {"info", 2, 1, show_memory},   {"nvml", 2, 0, ask_nvml},
    {"launch", 4, 1, launch},     {"graph", 4, 1, launch},       {"wait", 1, 0, wait_for_line},
    {"more", 1, 0, check_for_end}, {"kill", 1, 0, end},
};

/* Runs the first command; returns how many words it has. */
static int run(char **words)
{
    static int is_initialized;
    size_t i = 0;
    Result result = 0;

    while (i < sizeof commands / sizeof *commands && strcmp(commands[i].name, words[0]) != 0)
        i++;
    if (i == sizeof commands / sizeof *commands)
        fail(words[0]);
    if (commands[i].uses_cuda && !is_initialized++)
        result = p_cuInit(0);
    if (result != 0) {
        printf("{\"command\": \"init\", \"result\": %d}\n", result);
        exit(2);
    }
    commands[i].run(words);
    return commands[i].words;
}

int main(int number, char **words)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    words++;
    if (number > 2 && strcmp(words[0], "--by") == 0) {
        if (strcmp(words[1], "link") != 0)
            find_functions(words[1]);
        words += 2;
    }
    while (*words)
        words += run(words);
    return 0;
}
