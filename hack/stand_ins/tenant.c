/*
 * A program that uses a GPU as a tenant does, and prints what it got. It links libcuda.so.1 only.
 *
 *     tenant [--by link|dlsym|getproc] COMMAND...
 *
 * --by is how it finds CUDA's functions: by linking (the default), by dlsym as older runtimes do,
 * or by cuGetProcAddress as newer runtimes do. A limiter has to cover all of them. Each command
 * prints one JSON object on a line; `result` is the CUresult, 2 is CUDA_ERROR_OUT_OF_MEMORY.
 *
 *     count                       number of devices
 *     device CARD                 UUID, PCI bus ID and total memory
 *     alloc CARD MIB              cuMemAlloc
 *     managed CARD MIB            cuMemAllocManaged
 *     pitch CARD MIB              cuMemAllocPitch
 *     async CARD MIB              cuMemAllocAsync
 *     create CARD MIB             cuMemCreate
 *     free                        frees the memory of the last alloc, managed or pitch
 *     info CARD                   cuMemGetInfo
 *     nvml CARD                   nvmlDeviceGetMemoryInfo; as the first command, before cuInit
 *     launch CARD SECONDS BLOCKS  launches kernels for that time; how many ended
 *     wait                        waits for a line on standard input
 *     kill                        ends itself by SIGKILL, so that nothing is cleaned up
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int Result;
typedef unsigned long long Pointer;
enum { MAX_CARDS = 16, THREADS = 256, MIB_SHIFT = 20, AT_ONCE = 16 };

#define FUNCTIONS(X)                                                                              \
    X(cuInit, cuInit, (unsigned))                                                                 \
    X(cuDeviceGetCount, cuDeviceGetCount, (int *))                                                \
    X(cuDeviceGet, cuDeviceGet, (int *, int))                                                     \
    X(cuDeviceGetUuid, cuDeviceGetUuid, (unsigned char *, int))                                   \
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
    X(cuMemFree, cuMemFree_v2, (Pointer))                                                         \
    X(cuMemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *))                                        \
    X(cuModuleLoadData, cuModuleLoadData, (void **, const void *))                                \
    X(cuModuleGetFunction, cuModuleGetFunction, (void **, void *, const char *))                  \
    X(cuLaunchKernel, cuLaunchKernel,                                                             \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,      \
       void **, void **))

#define DECLARE(name, symbol, parameters)                                                         \
    extern Result symbol parameters;                                                              \
    static Result(*p_##name) parameters;
FUNCTIONS(DECLARE)
extern Result cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

/* A kernel that computes for a while. PTX, so the driver compiles it for every card. */
static const char kernel[] =
    ".version 6.3\n.target sm_52\n.address_size 64\n"
    ".visible .entry busy(.param .u64 out, .param .u32 rounds)\n{\n"
    ".reg .pred %p<2>;\n.reg .f32 %f<3>;\n.reg .b32 %r<3>;\n.reg .b64 %d<2>;\n"
    "ld.param.u64 %d1, [out];\nld.param.u32 %r1, [rounds];\n"
    "mov.f32 %f1, 0f3F800000;\nmov.u32 %r2, 0;\n"
    "L:\nfma.rn.f32 %f1, %f1, 0f3F800001, 0f3F000000;\nadd.u32 %r2, %r2, 1;\n"
    "setp.lt.u32 %p1, %r2, %r1;\n@%p1 bra L;\n"
    "setp.eq.f32 %p1, %f1, 0f00000000;\n@%p1 st.global.f32 [%d1], %f1;\nret;\n}\n";

static void *contexts[MAX_CARDS], *functions[MAX_CARDS];
static Pointer last;

static void fail(const char *what)
{
    printf("{\"error\": \"%s\"}\n", what);
    exit(3);
}

static void *address(void *library, const char *by, const char *name, const char *symbol)
{
    static Result (*get)(const char *, void **, int, uint64_t, int *);
    void *found = NULL;

    if (strcmp(by, "dlsym") == 0) {
        found = dlsym(library, symbol);
    } else {
        if (!get)
            *(void **)&get = dlsym(library, "cuGetProcAddress_v2");
        if (get)
            get(name, &found, 12000, 0, NULL);
    }
    if (!found)
        fail(symbol);
    return found;
}

static void find_functions(const char *by)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);

    if (!library)
        fail("no libcuda.so.1");
#define LINK(name, symbol, parameters) p_##name = symbol;
    FUNCTIONS(LINK)
    if (strcmp(by, "link") == 0)
        return;
#define FIND(name, symbol, parameters) *(void **)&p_##name = address(library, by, #name, #symbol);
    FUNCTIONS(FIND)
}

static void init(void)
{
    static int done;
    Result result;

    if (done++)
        return;
    result = p_cuInit(0);
    if (result == 0)
        return;
    printf("{\"command\": \"init\", \"result\": %d}\n", result);
    exit(2);
}

static Result use(int card)
{
    int device;
    Result result;

    if (card < 0 || card >= MAX_CARDS)
        fail("no such card");
    if (contexts[card])
        return p_cuCtxSetCurrent(contexts[card]);
    result = p_cuDeviceGet(&device, card);
    if (result == 0)
        result = p_cuDevicePrimaryCtxRetain(&contexts[card], device);
    return result == 0 ? p_cuCtxSetCurrent(contexts[card]) : result;
}

static Result create(int card, size_t bytes)
{
    struct { int type, handles, location, device; void *meta; unsigned char flags[16]; } what = {
        .type = 1, .location = 1, .device = card};
    Pointer handle;

    return p_cuMemCreate(&handle, bytes, &what, 0);
}

static void allocate(const char *how, int card, unsigned long mib)
{
    size_t bytes = (size_t)mib << MIB_SHIFT, pitch;
    Pointer memory = 0;
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
    if (result == 0 && memory && strcmp(how, "async") != 0)
        last = memory;
    printf("{\"command\": \"%s\", \"card\": %d, \"mib\": %lu, \"result\": %d}\n", how, card, mib,
           result);
}

static void print_device(int card)
{
    unsigned char uuid[16] = {0};
    char bus[32] = "", text[48] = "GPU-", *end = text + 4;
    size_t bytes = 0;
    int device;
    Result result = p_cuDeviceGet(&device, card);

    if (result == 0)
        result = p_cuDeviceGetUuid(uuid, device);
    if (result == 0)
        result = p_cuDeviceGetPCIBusId(bus, sizeof bus, device);
    if (result == 0)
        result = p_cuDeviceTotalMem(&bytes, device);
    for (int i = 0; i < 16; i++)
        end += sprintf(end, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
    printf("{\"command\": \"device\", \"card\": %d, \"result\": %d, \"uuid\": \"%s\", "
           "\"bus\": \"%s\", \"total_mib\": %zu}\n", card, result, text, bus, bytes >> MIB_SHIFT);
}

static void print_info(int card)
{
    size_t available = 0, total = 0;
    Result result = use(card);

    if (result == 0)
        result = p_cuMemGetInfo(&available, &total);
    printf("{\"command\": \"info\", \"card\": %d, \"result\": %d, \"free_mib\": %zu, "
           "\"total_mib\": %zu}\n", card, result, available >> MIB_SHIFT, total >> MIB_SHIFT);
}

static void print_nvml(int card)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW), *device = NULL;
    struct { unsigned long long total, available, used; } memory = {0, 0, 0};
    int (*init)(void), (*by_index)(unsigned, void **), (*get)(void *, void *), result;

    if (!library)
        fail("no libnvidia-ml.so.1");
    *(void **)&init = dlsym(library, "nvmlInit_v2");
    *(void **)&by_index = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&get = dlsym(library, "nvmlDeviceGetMemoryInfo");
    if (!init || !by_index || !get)
        fail("an NVML without functions");
    result = init();
    if (result == 0)
        result = by_index((unsigned)card, &device);
    if (result == 0)
        result = get(device, &memory);
    printf("{\"command\": \"nvml\", \"card\": %d, \"result\": %d, \"used_mib\": %llu, "
           "\"total_mib\": %llu}\n", card, result, memory.used >> MIB_SHIFT,
           memory.total >> MIB_SHIFT);
}

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void launch(int card, double seconds, unsigned blocks)
{
    unsigned rounds = 20000, count = 0;
    Pointer out = 0;
    void *module = NULL, *params[] = {&out, &rounds};
    double start;
    Result result = use(card);

    if (result == 0 && !functions[card]) {
        result = p_cuModuleLoadData(&module, kernel);
        if (result == 0)
            result = p_cuModuleGetFunction(&functions[card], module, "busy");
    }
    start = now();
    while (result == 0 && now() - start < seconds) {
        for (int i = 0; i < AT_ONCE && result == 0; i++)
            result = p_cuLaunchKernel(functions[card], blocks, 1, 1, THREADS, 1, 1, 0, NULL, params,
                                      NULL);
        if (result == 0)
            result = p_cuCtxSynchronize();
        count += result == 0 ? AT_ONCE : 0;
    }
    printf("{\"command\": \"launch\", \"card\": %d, \"result\": %d, \"count\": %u, "
           "\"seconds\": %.3f}\n", card, result, count, now() - start);
}

static void print_count(void)
{
    int count = 0;
    Result result = p_cuDeviceGetCount(&count);

    printf("{\"command\": \"count\", \"result\": %d, \"count\": %d}\n", result, count);
}

static void print_free(void)
{
    printf("{\"command\": \"free\", \"result\": %d}\n", p_cuMemFree(last));
    last = 0;
}

static void wait_for_line(void)
{
    char line[256];

    printf("{\"command\": \"wait\", \"result\": 0}\n");
    if (!fgets(line, sizeof line, stdin))
        exit(0);
}

static int run(char **words)
{
    const char *name = words[0];
    int card = words[1] ? atoi(words[1]) : -1;

    if (strcmp(name, "count") == 0)
        return init(), print_count(), 1;
    if (strcmp(name, "free") == 0)
        return print_free(), 1;
    if (strcmp(name, "wait") == 0)
        return wait_for_line(), 1;
    if (strcmp(name, "kill") == 0)
        return kill(getpid(), SIGKILL), 1;
    if (!words[1])
        fail("a command lacks a card");
    if (strcmp(name, "nvml") == 0)
        return print_nvml(card), 2;
    init();
    if (strcmp(name, "device") == 0)
        return print_device(card), 2;
    if (strcmp(name, "info") == 0)
        return print_info(card), 2;
    if (!words[2])
        fail("a command lacks a number");
    if (strcmp(name, "launch") == 0 && words[3])
        return launch(card, atof(words[2]), (unsigned)atoi(words[3])), 4;
    if (strstr("alloc managed pitch async create", name))
        return allocate(name, card, strtoul(words[2], NULL, 10)), 3;
    fail(name);
    return 0;
}

int main(int count, char **words)
{
    const char *by = "link";

    setvbuf(stdout, NULL, _IOLBF, 0);
    words++;
    if (count > 2 && strcmp(words[0], "--by") == 0) {
        by = words[1];
        words += 2;
    }
    find_functions(by);
    while (*words)
        words += run(words);
    return 0;
}
