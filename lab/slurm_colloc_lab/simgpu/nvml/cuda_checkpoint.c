/*
 * The driver's checkpoint calls (cuda.h of CUDA 12.8), as libcuda.so.1 has them.
 *
 * The driver acts through a thread of the process: so does this. A word goes into
 * processes/.PID.wanted, and the process answers in processes/.PID.checkpoint, in training/
 * checkpoint.py: a stopped one does not, and the call hangs, but for a lock's time-out.
 */
#include "nvml_common.h"

#include <fcntl.h>
#include <signal.h>

#define INVALID_VALUE 1
#define NOT_READY 600
#define ILLEGAL_STATE 401

static void pause_ms(long ms)
{
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

/* The process's answer to the newest word; 0 where it has given none yet. */
static int read_answer(int pid, unsigned number, unsigned *state, int *code)
{
    char where[PATH_MAX], path[PATH_MAX + 64], text[FILE_BYTES];
    if (!find_node(where, sizeof where))
        return 0;
    snprintf(path, sizeof path, "%s/processes/.%d.checkpoint", where, pid);
    *state = 0;
    *code = 0;
    if (read_text(path, text, sizeof text) < 0)
        return !number;
    *state = find_count(text, "state");
    *code = (int)find_count(text, "code");
    return !number || find_count(text, "number") == number;
}

static int is_client(int pid)
{
    char where[PATH_MAX], path[PATH_MAX + 64];
    if (!find_node(where, sizeof where))
        return 0;
    snprintf(path, sizeof path, "%s/processes/%d", where, pid);
    return !access(path, F_OK) && !kill(pid, 0);
}

static int ask(const char *call, const char *word, int pid, unsigned needed, double timeout_s)
{
    static unsigned count;
    unsigned number;
    char where[PATH_MAX], path[PATH_MAX + 64], temporary[PATH_MAX + 72];
    struct faults faults;
    unsigned state;
    int code, file;
    double began = read_monotonic_s();
    read_faults(&faults, call);
    if (faults.code)
        return faults.code;
    while (faults.hangs)
        pause_ms(1000);
    if (!is_client(pid))
        return INVALID_VALUE;
    read_answer(pid, 0, &state, &code);
    if (state != needed)
        return ILLEGAL_STATE;
    pause_ms((long)(1000 * faults.slow_s));
    number = ((unsigned)getpid() << 12) + ++count;
    if (!find_node(where, sizeof where))
        return UNKNOWN;
    snprintf(path, sizeof path, "%s/processes/.%d.wanted", where, pid);
    snprintf(temporary, sizeof temporary, "%s.new", path);
    file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (file < 0)
        return UNKNOWN;
    dprintf(file, "word=%s\nnumber=%u\n", word, number);
    close(file);
    if (rename(temporary, path))
        return UNKNOWN;
    while (!read_answer(pid, number, &state, &code)) {
        if (timeout_s > 0 && read_monotonic_s() - began > timeout_s) {
            unlink(path);
            return NOT_READY;
        }
        if (!is_client(pid))
            return INVALID_VALUE;
        pause_ms(5);
    }
    return code;
}

EXPORT int cuInit(unsigned flags)
{
    char where[PATH_MAX];
    return flags || !find_node(where, sizeof where) ? INVALID_VALUE : 0;
}

EXPORT int cuGetErrorString(int code, const char **text)
{
    *text = code == INVALID_VALUE   ? "invalid argument"
            : code == 2             ? "out of memory"
            : code == ILLEGAL_STATE ? "the operation cannot be performed in the present state"
            : code == NOT_READY     ? "device not ready"
                                    : "unknown error";
    return 0;
}

EXPORT int cuCheckpointProcessGetState(int pid, unsigned *state)
{
    struct faults faults;
    int code;
    read_faults(&faults, __func__);
    while (faults.hangs)
        pause_ms(1000);
    if (faults.code || !is_client(pid))
        return faults.code ? faults.code : INVALID_VALUE;
    read_answer(pid, 0, state, &code);
    return 0;
}

EXPORT int cuCheckpointProcessLock(int pid, const unsigned *timeout_ms)
{
    return ask(__func__, "lock", pid, 0, timeout_ms ? *timeout_ms / 1000.0 : 0);
}

EXPORT int cuCheckpointProcessCheckpoint(int pid, const void *arguments)
{
    (void)arguments;
    return ask(__func__, "checkpoint", pid, 1, 0);
}

EXPORT int cuCheckpointProcessRestore(int pid, const void *arguments)
{
    (void)arguments;
    return ask(__func__, "restore", pid, 2, 0);
}

EXPORT int cuCheckpointProcessUnlock(int pid, const void *arguments)
{
    (void)arguments;
    return ask(__func__, "unlock", pid, 1, 0);
}
