/*
 * A limiter: a library to preload that limits memory and compute as HAMi-core does, by what the
 * driver puts into a container. Without any of it, it lets no work pass, so a variable or mount
 * that is missing or wrong shows.
 *
 * It takes its limits by the index of a card, from CUDA_DEVICE_MEMORY_LIMIT_<index> and
 * CUDA_DEVICE_SM_LIMIT_<index>, and counts in the file CUDA_DEVICE_MEMORY_SHARED_CACHE.
 * GPU_CORE_UTILIZATION_POLICY has to be `force`. A value of a bypass variable turns it off. With
 * -DLIMITS_NOTHING it is a library without functions.
 *
 * Its functions come before libcuda's in a program that is linked with libcuda, and nowhere else.
 */
#ifndef LIMITS_NOTHING
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef int Result;
typedef unsigned long long Pointer;
enum { SUCCESS = 0, OUT_OF_MEMORY = 2, NOT_PERMITTED = 800, MAX_CARDS = 16, MAX_CHUNKS = 4096 };

static struct { Pointer address; size_t bytes; int device; } chunks[MAX_CHUNKS];

/* libcuda may be loaded after the limiter, by dlopen, so RTLD_NEXT does not find it. */
static void *real(const char *name)
{
    static void *libcuda;

    if (!libcuda)
        libcuda = dlopen("libcuda.so.1", RTLD_LAZY);
    return dlsym(libcuda, name);
}

static Result current_device(int *device)
{
    Result (*get)(int *) = real("cuCtxGetDevice");

    return get(device);
}

static int is_set(const char *name)
{
    const char *found = getenv(name);

    return found && *found;
}

static int is_off(void)
{
    return is_set("CUDA_REDIRECT") || is_set("CUDA_DISABLE_CONTROL");
}

static const char *value(const char *name, int device)
{
    char indexed[64];
    const char *found;

    snprintf(indexed, sizeof indexed, "%s_%d", name, device);
    found = getenv(indexed);
    return found ? found : "";
}

static uint64_t limit_of(int device)
{
    unsigned long long mib = 0;
    char unit = 0;

    sscanf(value("CUDA_DEVICE_MEMORY_LIMIT", device), "%llu%c", &mib, &unit);
    return unit == 'm' ? mib << 20 : 0;
}

static int percent_of(int device)
{
    const char *policy = getenv("GPU_CORE_UTILIZATION_POLICY");

    return policy && !strcmp(policy, "force") ? atoi(value("CUDA_DEVICE_SM_LIMIT", device)) : 0;
}

/* Memory on each card of all processes of the container. */
static _Atomic uint64_t *counters(void)
{
    static _Atomic uint64_t *mapped;
    const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    void *found;
    int file;

    if (mapped)
        return mapped;
    file = open(path ? path : "", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || ftruncate(file, MAX_CARDS * sizeof *mapped) != 0)
        return NULL;
    found = mmap(NULL, MAX_CARDS * sizeof *mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (found != MAP_FAILED)
        mapped = found;
    return mapped;
}

static void drop(int chunk)
{
    counters()[chunks[chunk].device] -= chunks[chunk].bytes;
    chunks[chunk].bytes = 0;
}

__attribute__((destructor)) static void drop_all(void)
{
    for (int i = 0; i < MAX_CHUNKS; i++)
        if (chunks[i].bytes)
            drop(i);
}

Result cuMemAlloc_v2(Pointer *address, size_t bytes)
{
    Result (*allocate)(Pointer *, size_t) = real("cuMemAlloc_v2"), result;
    int device, i = 0;

    result = current_device(&device);
    if (result != SUCCESS || is_off())
        return result != SUCCESS ? result : allocate(address, bytes);
    while (i < MAX_CHUNKS && chunks[i].bytes)
        i++;
    if (!counters() || !limit_of(device) || i == MAX_CHUNKS)
        return NOT_PERMITTED;
    result = (counters()[device] += bytes) > limit_of(device) ? OUT_OF_MEMORY
                                                              : allocate(address, bytes);
    chunks[i].device = device;
    chunks[i].bytes = bytes;
    if (result != SUCCESS)
        drop(i);
    else
        chunks[i].address = *address;
    return result;
}

Result cuMemFree_v2(Pointer address)
{
    Result (*release)(Pointer) = real("cuMemFree_v2");

    for (int i = 0; i < MAX_CHUNKS; i++)
        if (chunks[i].bytes && chunks[i].address == address)
            drop(i);
    return release(address);
}

static int64_t now_ns(void)
{
    struct timespec moment;

    clock_gettime(CLOCK_MONOTONIC, &moment);
    return moment.tv_sec * 1000000000LL + moment.tv_nsec;
}

/* Waits for the kernel, and then for so long that it had its share of the time. */
Result cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared, void *stream,
                      void **params, void **extra)
{
    Result (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     void *, void **, void **) = real("cuLaunchKernel"), result;
    Result (*synchronize)(void) = real("cuCtxSynchronize");
    int device, percent = 100;
    int64_t start = now_ns();

    result = current_device(&device);
    if (result == SUCCESS && !is_off())
        percent = percent_of(device);
    if (percent <= 0)
        return NOT_PERMITTED;
    result = launch(function, x, y, z, block_x, block_y, block_z, shared, stream, params, extra);
    if (result == SUCCESS && percent < 100) {
        result = synchronize();
        usleep((useconds_t)((now_ns() - start) * (100 - percent) / percent / 1000));
    }
    return result;
}
#endif
