/* A library that is preloaded into the node plugin: it counts flushes and written files.
 *
 * The counters are in a page of memory that the bench shares with the process (counters.py has the
 * same layout). Every call is passed on unchanged.
 *
 *   flushes         calls of fsync, fdatasync and syncfs
 *   files_written   files that were opened for writing and then written to, once for each opening
 *
 * A file that stays open, such as SQLite's log, therefore counts only when it is opened.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

struct counters {
    uint64_t flushes;
    uint64_t files_written;
    uint64_t transactions;    /* counted in counted_plugin.py, as is the next one */
    uint64_t records_decoded;
};

#define FILES 4096

static struct counters *counters;
static unsigned char unwritten[FILES]; /* by descriptor: opened for writing, nothing written yet */

#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("BENCH_COUNTERS");
    if (!path)
        return;
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        abort();
    counters = mmap(NULL, sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    if (counters == MAP_FAILED)
        abort();
}

static void count(uint64_t *counter)
{
    __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST);
}

static int opened(int file, int flags)
{
    int kept = errno;
    struct stat found;
    if (file >= 0 && file < FILES)
        unwritten[file] = (flags & O_ACCMODE) != O_RDONLY
            && !syscall(SYS_fstat, file, &found) && S_ISREG(found.st_mode);
    errno = kept;
    return file;
}

static void written(int file)
{
    if (counters && file >= 0 && file < FILES && __atomic_exchange_n(&unwritten[file], 0, __ATOMIC_SEQ_CST))
        count(&counters->files_written);
}

#define OPEN(function, parameters, ...)                    \
    int function parameters                                \
    {                                                      \
        int mode = 0;                                      \
        REAL(function);                                    \
        if (flags & (O_CREAT | __O_TMPFILE)) {             \
            va_list more;                                  \
            va_start(more, flags);                         \
            mode = va_arg(more, int);                      \
            va_end(more);                                  \
        }                                                  \
        return opened(real(__VA_ARGS__, mode), flags);     \
    }

OPEN(open, (const char *path, int flags, ...), path, flags)
OPEN(open64, (const char *path, int flags, ...), path, flags)
OPEN(openat, (int folder, const char *path, int flags, ...), folder, path, flags)
OPEN(openat64, (int folder, const char *path, int flags, ...), folder, path, flags)

/* The number may become that of a socket, whose writes are not those of a file. */
int close(int file)
{
    REAL(close);
    if (file >= 0 && file < FILES)
        unwritten[file] = 0;
    return real(file);
}

#define WRITE(function, parameters, ...)                   \
    ssize_t function parameters                            \
    {                                                      \
        REAL(function);                                    \
        written(file);                                     \
        return real(__VA_ARGS__);                          \
    }

WRITE(write, (int file, const void *content, size_t size), file, content, size)
WRITE(pwrite, (int file, const void *content, size_t size, off_t offset), file, content, size, offset)
WRITE(pwrite64, (int file, const void *content, size_t size, off64_t offset), file, content, size, offset)

#define FLUSH(name)                   \
    int name(int file)                \
    {                                 \
        REAL(name);                   \
        if (counters)                 \
            count(&counters->flushes); \
        return real(file);            \
    }

FLUSH(fsync)
FLUSH(fdatasync)
FLUSH(syncfs)
