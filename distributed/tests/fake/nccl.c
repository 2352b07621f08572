// NCCL without GPUs, for tests: `libnccl.so.2`, on top of the `libcuda.so` of cuda.c.
//
// Ranks are processes of one machine. A sum is an operation of the caller's stream, as in NCCL: it
// begins after the stream's earlier operations, and later operations wait for it. Ranks exchange
// values through shared memory, and each adds them in the order of ranks, so all get equal bits.
// A sum with a rank that ended never completes.
//
// Source: nccl.h of NCCL 2.14.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, FLOAT_32 = 7, SUM = 0, MOST_RANKS = 8, CHUNK = 1 << 16 };

typedef struct {
    char name[128];
} Id;

typedef struct {
    atomic_int joined;
    // Number of barriers that each rank has entered.
    atomic_ulong entered[MOST_RANKS];
    float values[MOST_RANKS][CHUNK];
} Shared;

typedef struct {
    int rank, ranks;
    unsigned long barriers;
    atomic_int is_aborted;
    Shared *shared;
} Communicator;

typedef struct {
    Communicator *communicator;
    const float *from;
    float *to;
    size_t len;
} Sum;

static int (*launch_on_stream)(void *, void (*)(void *), void *);

static int barrier(Communicator *own) {
    own->barriers++;
    atomic_store(&own->shared->entered[own->rank], own->barriers);
    for (int rank = 0; rank < own->ranks; rank++)
        while (atomic_load(&own->shared->entered[rank]) < own->barriers) {
            if (atomic_load(&own->is_aborted)) return 0;
            usleep(20);
        }
    return 1;
}

static void add(void *argument) {
    Sum *sum = argument;
    Communicator *own = sum->communicator;
    for (size_t start = 0; start < sum->len; start += CHUNK) {
        size_t len = sum->len - start < CHUNK ? sum->len - start : CHUNK;
        memcpy(own->shared->values[own->rank], sum->from + start, len * sizeof(float));
        if (!barrier(own)) break;
        for (size_t i = 0; i < len; i++) {
            float total = own->shared->values[0][i];
            for (int rank = 1; rank < own->ranks; rank++) total += own->shared->values[rank][i];
            sum->to[start + i] = total;
        }
        if (!barrier(own)) break;
    }
    // A captured sum runs again: its description stays.
}

int ncclGetVersion(int *version) {
    const char *given = getenv("FAKE_NCCL_VERSION");
    *version = given ? atoi(given) : 22705;
    return SUCCESS;
}

int ncclGetUniqueId(Id *id) {
    static atomic_int count;
    memset(id, 0, sizeof *id);
    snprintf(id->name, sizeof id->name, "/lockstep-fake-nccl-%d-%d", (int)getpid(), atomic_fetch_add(&count, 1));
    return SUCCESS;
}

int ncclCommInitRank(Communicator **communicator, int ranks, Id id, int rank) {
    if (ranks < 1 || ranks > MOST_RANKS || rank < 0 || rank >= ranks) return INVALID_ARGUMENT;
    void *driver = dlopen("libcuda.so", RTLD_NOW);
    launch_on_stream = driver ? dlsym(driver, "cuLaunchHostFunc") : NULL;
    int file = shm_open(id.name, O_RDWR | O_CREAT, 0600);
    if (!launch_on_stream || file < 0 || ftruncate(file, sizeof(Shared))) return SYSTEM_ERROR;
    Shared *shared = mmap(NULL, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (shared == MAP_FAILED) return SYSTEM_ERROR;
    Communicator *own = calloc(1, sizeof *own);
    *own = (Communicator){.rank = rank, .ranks = ranks, .shared = shared};
    atomic_fetch_add(&shared->joined, 1);
    while (atomic_load(&shared->joined) < ranks) usleep(100);
    // Everyone has opened the memory: its name is not needed any more.
    shm_unlink(id.name);
    *communicator = own;
    return SUCCESS;
}

int ncclAllReduce(const void *from, void *to, size_t len, int type, int operation, Communicator *own, void *stream) {
    if (type != FLOAT_32 || operation != SUM) return INVALID_ARGUMENT;
    Sum *sum = malloc(sizeof *sum);
    *sum = (Sum){own, from, to, len};
    return launch_on_stream(stream, add, sum) ? SYSTEM_ERROR : SUCCESS;
}

int ncclCommGetAsyncError(Communicator *own, int *error) { (void)own; *error = SUCCESS; return SUCCESS; }
int ncclCommFinalize(Communicator *own) { (void)own; return SUCCESS; }
// Pending sums may name the communicator, so its memory stays.
int ncclCommDestroy(Communicator *own) { (void)own; return SUCCESS; }
int ncclCommAbort(Communicator *own) { atomic_store(&own->is_aborted, 1); return SUCCESS; }
const char *ncclGetErrorString(int result) {
    return result == SYSTEM_ERROR ? "system error" : result == INVALID_ARGUMENT ? "invalid argument" : "no error";
}
