/* A clock that is SHIFT seconds off, for one program: LD_PRELOAD. The machines of a test share their kernel's clock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

int clock_gettime(clockid_t id, struct timespec *out)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, out);
    if (!result && id == CLOCK_REALTIME)
        out->tv_sec += SHIFT;
    return result;
}
