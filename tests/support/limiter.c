/*
 * A limiter for tests: a library to preload that limits CUDA's memory as the enforcers' own
 * libraries do, by what the driver puts into a container. Without any of it, it lets no work pass,
 * so a variable or mount that is missing or wrong fails a test.
 *
 * As HAMi-core (the default), it takes its limits by the index of a card, from
 * CUDA_DEVICE_MEMORY_LIMIT_<index>, or without an index, and counts in the file
 * CUDA_DEVICE_MEMORY_SHARED_CACHE. Compute has to be limited by CUDA_DEVICE_SM_LIMIT_<index>, and
 * GPU_CORE_UTILIZATION_POLICY has to be `force`. A value of a bypass variable turns it off.
 *
 * With -DBY_UUID, it takes them from the JSON map TENSOR_FUSION_CUDA_MEM_LIMIT and counts in a file
 * in the folder SHM_PATH.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int Result;
typedef unsigned long long Pointer;
enum { OUT_OF_MEMORY = 2, NOT_PERMITTED = 800, MAX_CARDS = 16 };

extern Result cuCtxGetDevice(int *);
extern Result cuDeviceGetUuid(unsigned char *, int);

static int is_off(void)
{
    static const char *const bypasses[] = {"CUDA_REDIRECT", "CUDA_DISABLE_CONTROL",
                                           "DISABLE_GPU_LIMITER", "TF_DISABLE_MEMORY_MANAGER"};

    for (size_t i = 0; i < sizeof bypasses / sizeof *bypasses; i++)
        if (getenv(bypasses[i]) && *getenv(bypasses[i]))
            return 1;
    return 0;
}

#ifdef BY_UUID
static uint64_t limit_of(int device)
{
    const char *limits = getenv("TENSOR_FUSION_CUDA_MEM_LIMIT"), *found;
    unsigned char bytes[16];
    char name[64] = "\"GPU-", *end = name + 5;

    if (!limits || cuDeviceGetUuid(bytes, device) != 0)
        return 0;
    for (int i = 0; i < 16; i++)
        end += sprintf(end, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", bytes[i]);
    strcpy(end, "\":");
    found = strcasestr(limits, name);
    return found ? strtoull(found + strlen(name), NULL, 10) : 0;
}

static const char *counter_path(char *room, size_t size)
{
    const char *folder = getenv("SHM_PATH");

    if (!folder || !*folder)
        return "";
    snprintf(room, size, "%s/counter", folder);
    return room;
}

static int limits_compute(int device)
{
    (void)device;
    return getenv("TF_SHM_PATH") && getenv("POD_NAME") && getenv("POD_NAMESPACE");
}
#else
static const char *value(const char *name, int device)
{
    char indexed[64];
    const char *found;

    snprintf(indexed, sizeof indexed, "%s_%d", name, device);
    found = getenv(indexed);
    if (!found)
        found = getenv(name);
    return found ? found : "";
}

static uint64_t limit_of(int device)
{
    unsigned long long mib = 0;
    char unit = 0;

    sscanf(value("CUDA_DEVICE_MEMORY_LIMIT", device), "%llu%c", &mib, &unit);
    return unit == 'm' ? mib << 20 : 0;
}

static const char *counter_path(char *room, size_t size)
{
    const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");

    snprintf(room, size, "%s", path ? path : "");
    return room;
}

static int limits_compute(int device)
{
    const char *policy = getenv("GPU_CORE_UTILIZATION_POLICY");

    return atoi(value("CUDA_DEVICE_SM_LIMIT", device)) > 0 && policy && !strcmp(policy, "force");
}
#endif

static _Atomic uint64_t *counters(void)
{
    static _Atomic uint64_t *mapped;
    char room[4096];
    void *found;
    int file;

    if (mapped)
        return mapped;
    file = open(counter_path(room, sizeof room), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || ftruncate(file, MAX_CARDS * sizeof *mapped) != 0)
        return NULL;
    found = mmap(NULL, MAX_CARDS * sizeof *mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (found != MAP_FAILED)
        mapped = found;
    return mapped;
}

Result cuMemAlloc_v2(Pointer *address, size_t bytes)
{
    Result (*real)(Pointer *, size_t), result;
    int device;

    *(void **)&real = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    result = cuCtxGetDevice(&device);
    if (result != 0 || is_off())
        return result != 0 ? result : real(address, bytes);
    if (!counters() || !limit_of(device))
        return NOT_PERMITTED;
    if ((counters()[device] += bytes) > limit_of(device)) {
        counters()[device] -= bytes;
        return OUT_OF_MEMORY;
    }
    return real(address, bytes);
}

Result cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared, void *stream,
                      void **params, void **extra)
{
    Result (*real)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void *, void **, void **), result;
    int device;

    *(void **)&real = dlsym(RTLD_NEXT, "cuLaunchKernel");
    result = cuCtxGetDevice(&device);
    if (result == 0 && !is_off() && !limits_compute(device))
        return NOT_PERMITTED;
    return real(function, x, y, z, block_x, block_y, block_z, shared, stream, params, extra);
}
