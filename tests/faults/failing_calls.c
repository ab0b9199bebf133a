/* LD_PRELOAD library: lets the n-th call of libc that concerns a file below a folder fail, or kills the process there.
 *
 * The file FAILING_CALLS holds `struct plan` (support_calls.py writes it). `error` is an errno, or KILL. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define KILL 9999
static struct plan { int armed, at, error, to_the_end, calls, fired; char call[64], folder[256]; } *plan;

__attribute__((constructor)) static void load_plan(void) {
    const char *path = getenv("FAILING_CALLS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *mapped = mmap(0, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) plan = mapped;
    close(fd);
}

static int below(const char *path) { return path && strncmp(path, plan->folder, strlen(plan->folder)) == 0; }

static int of_fd(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

static int at(int fd, const char *path) { return path && path[0] == '/' ? below(path) : fd != AT_FDCWD && of_fd(fd); }

static int fails(const char *call, int concerned) {
    if (!concerned) return 0;
    int number = __sync_add_and_fetch(&plan->calls, 1);
    if (number != plan->at && !(plan->to_the_end && number > plan->at)) return 0;
    if (!plan->fired) strncpy(plan->call, call, sizeof plan->call - 1);
    plan->fired = 1;
    if (plan->error == KILL) kill(getpid(), SIGKILL);
    errno = plan->error;
    return 1;
}

#define ARMED(expression) (plan && plan->armed && (expression))
#define CALL(type, name, parameters, arguments, concerned, failed)                                                     \
    type name parameters {                                                                                             \
        static type(*real) parameters;                                                                                 \
        if (!real) real = dlsym(RTLD_NEXT, #name);                                                                     \
        return fails(#name, ARMED(concerned)) ? failed : real arguments;                                               \
    }
#define OPEN(name, parameters, arguments, concerned)                                                                   \
    int name parameters {                                                                                              \
        static int (*real) parameters;                                                                                 \
        if (!real) real = dlsym(RTLD_NEXT, #name);                                                                     \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                        \
        va_end(more);                                                                                                  \
        return fails(#name, ARMED(concerned)) ? -1 : real arguments;                                                   \
    }

OPEN(open, (const char *p, int flags, ...), (p, flags, mode), below(p))
OPEN(open64, (const char *p, int flags, ...), (p, flags, mode), below(p))
OPEN(openat, (int d, const char *p, int flags, ...), (d, p, flags, mode), at(d, p))
OPEN(openat64, (int d, const char *p, int flags, ...), (d, p, flags, mode), at(d, p))
CALL(ssize_t, read, (int fd, void *b, size_t n), (fd, b, n), of_fd(fd), -1)
CALL(ssize_t, write, (int fd, const void *b, size_t n), (fd, b, n), of_fd(fd), -1)
CALL(int, fsync, (int fd), (fd), of_fd(fd), -1)
CALL(int, fchmod, (int fd, mode_t m), (fd, m), of_fd(fd), -1)
CALL(int, fstat, (int fd, struct stat *s), (fd, s), of_fd(fd), -1)
CALL(int, fstat64, (int fd, struct stat64 *s), (fd, s), of_fd(fd), -1)
CALL(off64_t, lseek64, (int fd, off64_t o, int w), (fd, o, w), of_fd(fd), -1)
CALL(int, stat, (const char *p, struct stat *s), (p, s), below(p), -1)
CALL(int, stat64, (const char *p, struct stat64 *s), (p, s), below(p), -1)
CALL(int, lstat, (const char *p, struct stat *s), (p, s), below(p), -1)
CALL(int, lstat64, (const char *p, struct stat64 *s), (p, s), below(p), -1)
CALL(int, fstatat, (int d, const char *p, struct stat *s, int f), (d, p, s, f), at(d, p), -1)
CALL(int, fstatat64, (int d, const char *p, struct stat64 *s, int f), (d, p, s, f), at(d, p), -1)
CALL(int, rename, (const char *a, const char *b), (a, b), below(a) || below(b), -1)
CALL(int, renameat, (int x, const char *a, int y, const char *b), (x, a, y, b), at(x, a) || at(y, b), -1)
CALL(int, link, (const char *a, const char *b), (a, b), below(b), -1)
CALL(int, linkat, (int x, const char *a, int y, const char *b, int f), (x, a, y, b, f), at(y, b), -1)
CALL(int, unlink, (const char *p), (p), below(p), -1)
CALL(int, unlinkat, (int d, const char *p, int f), (d, p, f), at(d, p), -1)
CALL(int, mkdir, (const char *p, mode_t m), (p, m), below(p), -1)
CALL(int, mkdirat, (int d, const char *p, mode_t m), (d, p, m), at(d, p), -1)
CALL(int, rmdir, (const char *p), (p), below(p), -1)
CALL(int, utimensat, (int d, const char *p, const struct timespec t[2], int f), (d, p, t, f), at(d, p), -1)
CALL(DIR *, opendir, (const char *p), (p), below(p), 0)
CALL(DIR *, fdopendir, (int fd), (fd), of_fd(fd), 0)
CALL(struct dirent64 *, readdir64, (DIR *d), (d), of_fd(dirfd(d)), 0)
CALL(struct dirent *, readdir, (DIR *d), (d), of_fd(dirfd(d)), 0)

/* A close that fails still closes, as in Linux. */
int close(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "close");
    int failed = fails("close", ARMED(of_fd(fd))), error = errno, done = real(fd);
    if (failed) errno = error;
    return failed ? -1 : done;
}
