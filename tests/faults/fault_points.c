/* A library that is preloaded into the node plugin: it traces every durable step, and kills the
 * process there.
 *
 * There is a point before and after each call that changes a file below a folder, and before and
 * after each request that writes to the API server. A page that the test shares with the process
 * sets the action at points (fault_points.py has the same layout):
 *
 *   mode 1   write the name of each point as a line of the trace
 *   mode 2   kill the process at the given occurrence of one point
 *   error    calls that change something below another folder fail with this errno; on a full disk
 *            only calls that need more room than has been freed on it since
 *
 * Names are the same in every run: UIDs and the names of hidden files are left out.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

enum { OFF, TRACE, KILL };
enum { BLOCK = 4096 }; /* what a new file, folder or socket needs of a disk */

struct control {
    int mode;
    int wanted; /* which occurrence of the point, from 1 */
    int passed; /* occurrences so far */
    int error;
    size_t room; /* bytes left on a full disk: the size of what was removed since it is full */
    char root[512];
    char broken[512];
    char point[1024];
};

#define CONNECTIONS 1024

static struct control *control;
static char trace_path[600];
static char pending[CONNECTIONS][512]; /* by connection, the write request without an answer yet */

#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("FAULT_POINTS");
    if (!path)
        return;
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        abort();
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    if (control == MAP_FAILED)
        abort();
    snprintf(trace_path, sizeof trace_path, "%s.trace", path);
}

static int below(const char *path, const char *folder)
{
    size_t size = strlen(folder);
    return size && !strncmp(path, folder, size) && (path[size] == '/' || path[size] == '\0');
}

/* Returns the path of an open file; "" if it is not a file. */
static const char *path_of(int file, char *buffer, size_t size)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t found = syscall(SYS_readlinkat, AT_FDCWD, link, buffer, size - 1);
    buffer[found < 0 ? 0 : found] = '\0';
    return buffer;
}

static int is_uid(const char *text)
{
    for (int i = 0; i < 36; i++) {
        int dash = i == 8 || i == 13 || i == 18 || i == 23;
        if (dash ? text[i] != '-' : !strchr("0123456789abcdefABCDEF", text[i]) || !text[i])
            return 0;
    }
    return 1;
}

static void normalize(char *out, size_t size, const char *text)
{
    size_t used = 0;
    while (*text && used + 16 < size) {
        if (is_uid(text)) {
            used += (size_t)sprintf(out + used, "UID");
            text += 36;
        } else if (text[0] == '/' && text[1] == '.') {
            used += (size_t)sprintf(out + used, "/.temporary");
            text += 1 + strcspn(text + 1, "/");
        } else {
            out[used++] = *text++;
        }
    }
    out[used] = '\0';
}

static void pass(const char *when, const char *step, const char *subject)
{
    char name[1024];
    int prefix = snprintf(name, sizeof name, "%s %s ", when, step);
    normalize(name + prefix, sizeof name - (size_t)prefix, subject);
    if (control->mode == TRACE) {
        int trace = (int)syscall(SYS_openat, AT_FDCWD, trace_path,
                                 O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        size_t size = strlen(name);
        name[size] = '\n';
        if (syscall(SYS_write, trace, name, size + 1) < 0)
            abort();
        syscall(SYS_close, trace);
    } else if (control->mode == KILL && !strcmp(name, control->point)) {
        if (__atomic_add_fetch(&control->passed, 1, __ATOMIC_SEQ_CST) == control->wanted) {
            syscall(SYS_kill, getpid(), SIGKILL);
            for (;;)
                pause();
        }
    }
}

/* Changes of memory that two processes share are not durable steps. */
static void file_point(const char *when, const char *step, const char *path)
{
    int kept = errno;
    size_t size = strlen(path);
    int is_shared = size > 4 && !strcmp(path + size - 4, "-shm");
    if (control && control->mode != OFF && below(path, control->root) && !is_shared)
        pass(when, step, path + strlen(control->root));
    errno = kept;
}

/* A full disk accepts steps that fit into its room, even to overwrite; a read-only disk none. */
static int is_refused(const char *step, const char *path, size_t bytes)
{
    if (!control || !control->error || !below(path, control->broken))
        return 0;
    if (control->error == EROFS)
        return strcmp(step, "sync") != 0;
    if (bytes > control->room)
        return 1;
    control->room -= bytes;
    return 0;
}

#define ON_PATH(type, step, path, bytes, call)     \
    do {                                           \
        if (is_refused(step, path, bytes)) {       \
            errno = control->error;                \
            return (type)-1;                       \
        }                                          \
        file_point("before", step, path);          \
        type answer = call;                        \
        file_point("after", step, path);           \
        return answer;                             \
    } while (0)

/* Opening an existing file is no step, whatever the flags; creating a file is one. */
#define OPEN(function, folder, parameters, ...)                                         \
    int function parameters                                                             \
    {                                                                                   \
        int mode = 0;                                                                   \
        REAL(function);                                                                 \
        if (flags & (O_CREAT | __O_TMPFILE)) {                                          \
            va_list more;                                                               \
            va_start(more, flags);                                                      \
            mode = va_arg(more, int);                                                   \
            va_end(more);                                                               \
        }                                                                               \
        int exists = control && !syscall(SYS_faccessat, folder, path, F_OK);            \
        int writes = (flags & O_ACCMODE) != O_RDONLY;                                   \
        if (exists && writes && is_refused("open", path, 0)) {                          \
            errno = control->error;                                                     \
            return -1;                                                                  \
        }                                                                               \
        if (exists || !(flags & O_CREAT))                                               \
            return real(__VA_ARGS__, mode);                                             \
        ON_PATH(int, "create", path, BLOCK, real(__VA_ARGS__, mode));                   \
    }

OPEN(open, AT_FDCWD, (const char *path, int flags, ...), path, flags)
OPEN(open64, AT_FDCWD, (const char *path, int flags, ...), path, flags)
OPEN(openat, folder, (int folder, const char *path, int flags, ...), folder, path, flags)

/* Functions that are one step on a path or on an open file, and need that many bytes of a disk. */
#define PATH_STEP(function, step, bytes, parameters, ...)         \
    int function parameters                                       \
    {                                                             \
        REAL(function);                                           \
        ON_PATH(int, step, path, bytes, real(__VA_ARGS__));       \
    }
#define FILE_STEP(type, function, step, bytes, parameters, ...)           \
    type function parameters                                              \
    {                                                                     \
        REAL(function);                                                   \
        char buffer[4096];                                                \
        if (!control || file <= 2 || (!control->mode && !control->error)) \
            return real(__VA_ARGS__);                                     \
        const char *path = path_of(file, buffer, sizeof buffer);          \
        ON_PATH(type, step, path, bytes, real(__VA_ARGS__));              \
    }

FILE_STEP(ssize_t, write, "write", size,
          (int file, const void *content, size_t size), file, content, size)
FILE_STEP(ssize_t, pwrite, "write", size,
          (int file, const void *content, size_t size, off_t offset), file, content, size, offset)
FILE_STEP(ssize_t, pwrite64, "write", size,
          (int file, const void *content, size_t size, off64_t offset), file, content, size, offset)
FILE_STEP(int, ftruncate, "truncate", 0, (int file, off_t size), file, size)
FILE_STEP(int, ftruncate64, "truncate", 0, (int file, off64_t size), file, size)
FILE_STEP(int, fsync, "sync", 0, (int file), file)
FILE_STEP(int, fdatasync, "sync", 0, (int file), file)
FILE_STEP(int, fchmod, "chmod", 0, (int file, mode_t mode), file, mode)
PATH_STEP(chmod, "chmod", 0, (const char *path, mode_t mode), path, mode)
PATH_STEP(rename, "rename to", 0, (const char *old, const char *path), old, path)
PATH_STEP(mkdir, "mkdir", BLOCK, (const char *path, mode_t mode), path, mode)
PATH_STEP(rmdir, "rmdir", 0, (const char *path), path)

int unlink(const char *path)
{
    REAL(unlink);
    struct stat found;
    if (control && below(path, control->broken)
        && !syscall(SYS_newfstatat, AT_FDCWD, path, &found, AT_SYMLINK_NOFOLLOW))
        control->room += (size_t)found.st_size;
    ON_PATH(int, "unlink", path, 0, real(path));
}

int bind(int file, const struct sockaddr *address, socklen_t size)
{
    REAL(bind);
    const char *path = ((const struct sockaddr_un *)address)->sun_path;
    if (address->sa_family != AF_UNIX)
        return real(file, address, size);
    ON_PATH(int, "bind", path, BLOCK, real(file, address, size));
}

/* Verb and path of a write request; "" for anything else. */
static void request_of(char *out, size_t size, const char *content, size_t length)
{
    static const char *const verbs[] = {"POST /", "PUT /", "PATCH /", "DELETE /"};
    out[0] = '\0';
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        size_t end = strlen(verbs[i]);
        if (length <= end || memcmp(content, verbs[i], end))
            continue;
        while (end < length && content[end] != ' ' && content[end] != '?')
            end++;
        snprintf(out, size, "%.*s", (int)end, content);
    }
}

ssize_t send(int connection, const void *content, size_t size, int flags)
{
    REAL(send);
    if (control && control->mode != OFF && connection >= 0 && connection < CONNECTIONS) {
        char request[512];
        request_of(request, sizeof request, content, size);
        if (*request) {
            pass("before", "request", request);
            strcpy(pending[connection], request);
        }
    }
    return real(connection, content, size, flags);
}

ssize_t recv(int connection, void *content, size_t size, int flags)
{
    REAL(recv);
    ssize_t answer = real(connection, content, size, flags);
    if (answer > 0 && connection < CONNECTIONS && *pending[connection]) {
        int kept = errno;
        if (control && control->mode != OFF)
            pass("after", "request", pending[connection]);
        *pending[connection] = '\0';
        errno = kept;
    }
    return answer;
}
