/*
 * A limiter for hack/gpu-check --stand-ins, loaded in the place of HAMi-core's library.
 *
 * It reads the variables that a CDI spec sets for HAMi-core: CUDA_DEVICE_MEMORY_LIMIT (such as
 * 1024m), CUDA_DEVICE_SM_LIMIT (percent) and CUDA_DEVICE_MEMORY_SHARED_CACHE, a file in which the
 * processes of a container add up their memory. It takes the time of the fastest of the first
 * kernels for that of all, and launches one only when those before have taken no more than their
 * share of the time.
 *
 * With -DLIMITS_NOTHING it is a library without these functions, to show that the check then fails.
 *
 * Its functions come before libcuda's in a program that is linked with libcuda, and nowhere else.
 */
#ifdef LIMITS_NOTHING
int limits_nothing;
#else
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, UNKNOWN = 999, MAX_CHUNKS = 4096, PAGE = 4096, TRIED = 16 };
#define SECOND 1000000000LL

static uint64_t limit_bytes, own_bytes;
static int percent, launches;
static _Atomic uint64_t *used_bytes; /* by all processes of the container */
static int64_t next_launch, kernel_ns = SECOND;
static struct { uint64_t address, bytes; } chunks[MAX_CHUNKS];

/* libcuda is loaded after the limiter, by dlopen, so RTLD_NEXT does not find it. */
static void *real(const char *name)
{
    static void *libcuda;

    if (!libcuda)
        libcuda = dlopen("libcuda.so.1", RTLD_LAZY);
    return libcuda ? dlsym(libcuda, name) : NULL;
}

__attribute__((constructor)) static void read_limits(void)
{
    const char *memory = getenv("CUDA_DEVICE_MEMORY_LIMIT");
    const char *part = getenv("CUDA_DEVICE_SM_LIMIT");
    const char *cache = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    int file = cache ? open(cache, O_RDWR | O_CREAT, 0666) : -1;

    limit_bytes = memory ? strtoull(memory, NULL, 10) << 20 : 0;
    percent = part ? atoi(part) : 100;
    if (file >= 0 && ftruncate(file, PAGE) == 0)
        used_bytes = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
}

__attribute__((destructor)) static void give_back(void)
{
    if (used_bytes)
        *used_bytes -= own_bytes;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    int (*allocate)(uint64_t *, size_t) = real("cuMemAlloc_v2");
    int i = 0, result = OUT_OF_MEMORY;

    while (i < MAX_CHUNKS && chunks[i].bytes)
        i++;
    if (!allocate || !used_bytes || i == MAX_CHUNKS)
        return UNKNOWN;
    if (atomic_fetch_add(used_bytes, bytes) + bytes <= limit_bytes)
        result = allocate(address, bytes);
    if (result != SUCCESS) {
        *used_bytes -= bytes;
        return result;
    }
    chunks[i].address = *address;
    chunks[i].bytes = bytes;
    own_bytes += bytes;
    return SUCCESS;
}

int cuMemFree_v2(uint64_t address)
{
    int (*release)(uint64_t) = real("cuMemFree_v2");

    if (!release)
        return UNKNOWN;
    for (int i = 0; i < MAX_CHUNKS; i++)
        if (chunks[i].bytes && chunks[i].address == address) {
            *used_bytes -= chunks[i].bytes;
            own_bytes -= chunks[i].bytes;
            chunks[i].bytes = 0;
        }
    return release(address);
}

int cuMemGetInfo_v2(size_t *available, size_t *total)
{
    *total = limit_bytes;
    *available = limit_bytes - (used_bytes ? *used_bytes : 0);
    return SUCCESS;
}

static int64_t now(void)
{
    struct timespec moment;

    clock_gettime(CLOCK_MONOTONIC, &moment);
    return moment.tv_sec * SECOND + moment.tv_nsec;
}

static void wait_for_turn(void)
{
    struct timespec moment = {next_launch / SECOND, next_launch % SECOND};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &moment, NULL) != 0)
        ;
    /* A process that was late may catch up, but not on a time in which it launched nothing. */
    if (next_launch < now() - SECOND / 10)
        next_launch = now();
    next_launch += kernel_ns * 100 / percent;
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, void *stream,
                   void **parameters, void **extra)
{
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  void *, void **, void **) = real("cuLaunchKernel");
    int (*synchronize)(void) = real("cuCtxSynchronize");
    int is_limited = percent < 100, is_measured = is_limited && launches++ < TRIED;
    int64_t start;
    int result;

    if (!launch || !synchronize)
        return UNKNOWN;
    if (is_measured)
        synchronize();
    else if (is_limited)
        wait_for_turn();
    start = now();
    result = launch(function, x, y, z, block_x, block_y, block_z, shared, stream, parameters, extra);
    if (is_measured && synchronize() == SUCCESS && now() - start < kernel_ns)
        kernel_ns = now() - start;
    if (is_measured)
        usleep((unsigned)getpid() % 7 * 500); /* out of step with others that measure */
    return result;
}
#endif
