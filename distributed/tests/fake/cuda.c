// A CUDA driver without a GPU, for tests: `libcuda.so`.
//
// Device memory is host memory. Each stream is a thread, so copies and waits for events happen in
// the order of the streams and no other. Launches are checked and recorded. Kernels compute nothing,
// unless nvrtc.c compiled them for the CPU.
//
// FAKE_CUDA_SM       compute capability: 70, 80 or 90 (default)
// FAKE_CUDA_DEVICES  number of GPUs (default 1)
// FAKE_CUDA_LOG      file to which each call appends a line
// FAKE_CUDA_DELAY    microseconds before each operation of a stream, which reveals missing waits
//
// Source: NVIDIA, CUDA driver API; limits by generation: CUDA programming guide, "Compute
// capabilities".
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NO_BINARY = 209, NOT_READY = 600 };

typedef struct Event {
    uint64_t recorded, completed;
    double time;
    struct Graph *capture; // of the stream that recorded it last
} Event;

typedef enum { COPY, FILL, KERNEL, RECORD, WAIT, CALL, RELEASE } Kind;

typedef struct Operation {
    Kind kind;
    char *to;
    const char *from;
    size_t width, height, to_pitch, from_pitch;
    Event *event;
    uint64_t number;
    void (*function)(void *);
    struct Launch *launch;
    struct Operation *next;
} Operation;

typedef struct Graph {
    Operation *first, **end;
    size_t operations, kernels;
} Graph;

typedef struct Stream {
    int number;
    pthread_t thread;
    Operation *first, **end;
    int is_busy, is_ended;
    Graph *capture;
    struct Stream *next;
} Stream;

typedef struct {
    char name[512];
    int shared_bytes;
    // Of an emulated kernel: copies the arguments; runs the kernel with a copy.
    void *(*copy)(void **arguments);
    void (*run)(unsigned sizes[2][3], void *arguments);
} Function;

// An emulated launch. A captured launch runs often, so it stays.
typedef struct Launch {
    Function *function;
    unsigned sizes[2][3];
    void *arguments;
} Launch;

typedef struct {
    int sm, processors, shared_bytes;
    const char *name;
} Generation;

static const Generation GENERATIONS[] = {
    {70, 80, 96 << 10, "recorded V100"},
    {80, 108, 163 << 10, "recorded A100"},
    {90, 132, 227 << 10, "recorded H100"},
};

// One lock and one condition for everything: tests are not about speed.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, kernels = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Stream *streams, null_stream;
static int num_streams;
static FILE *journal;
static __thread void *current;

static int variable(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static const Generation *generation(void) {
    int sm = variable("FAKE_CUDA_SM", 90);
    for (size_t i = 0; i < sizeof GENERATIONS / sizeof *GENERATIONS; i++)
        if (GENERATIONS[i].sm == sm) return &GENERATIONS[i];
    fprintf(stderr, "FAKE_CUDA_SM: expected 70, 80 or 90, got %d\n", sm);
    abort();
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

// Called with the lock.
__attribute__((format(printf, 1, 2))) static void note(const char *format, ...) {
    const char *path = getenv("FAKE_CUDA_LOG");
    if (!path) return;
    if (!journal) {
        journal = fopen(path, "a");
        if (!journal) abort();
        setvbuf(journal, NULL, _IOLBF, 1 << 16);
    }
    va_list values;
    va_start(values, format);
    vfprintf(journal, format, values);
    va_end(values);
    fputc('\n', journal);
}

static void perform(Operation *op) {
    switch (op->kind) {
    case COPY:
        for (size_t row = 0; row < op->height; row++)
            memcpy(op->to + row * op->to_pitch, op->from + row * op->from_pitch, op->width);
        break;
    case FILL: memset(op->to, (int)op->number, op->width); break;
    case CALL: op->function(op->to); break;
    case KERNEL:
        if (!op->launch) break;
        // Emulated kernels have one block at a time.
        pthread_mutex_lock(&kernels);
        op->launch->function->run(op->launch->sizes, op->launch->arguments);
        pthread_mutex_unlock(&kernels);
        break;
    case RELEASE: munmap(op->to - 4096, *(size_t *)(op->to - 4096)); break;
    default: break;
    }
}

static void *work(void *argument) {
    Stream *stream = argument;
    int delay = variable("FAKE_CUDA_DELAY", 0);
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!stream->first && !stream->is_ended) pthread_cond_wait(&changed, &lock);
        Operation *op = stream->first;
        if (!op) break;
        stream->is_busy = 1;
        if (op->kind == WAIT)
            while (op->event->completed < op->number) pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
        if (delay) usleep(delay);
        perform(op);
        pthread_mutex_lock(&lock);
        if (op->kind == RECORD) {
            op->event->time = now();
            if (op->event->completed < op->number) op->event->completed = op->number;
        }
        stream->first = op->next;
        if (!stream->first) stream->end = &stream->first;
        stream->is_busy = 0;
        free(op);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void start(Stream *stream) {
    stream->number = num_streams++;
    stream->end = &stream->first;
    stream->next = streams;
    streams = stream;
    if (pthread_create(&stream->thread, NULL, work, stream)) abort();
}

// Called with the lock. The default stream has the handle 0.
static Stream *opened(void *handle) {
    if (handle) return handle;
    if (!null_stream.end) start(&null_stream);
    return &null_stream;
}

// Called with the lock.
static void add(Stream *stream, Operation operation) {
    Operation *op = malloc(sizeof *op);
    *op = operation;
    op->next = NULL;
    Graph *graph = stream->capture;
    Operation ***end = graph ? &graph->end : &stream->end;
    **end = op;
    *end = &op->next;
    if (graph) {
        graph->operations++;
        graph->kernels += op->kind == KERNEL;
    }
    pthread_cond_broadcast(&changed);
}

static void drain(Stream *stream) {
    while (stream->first || stream->is_busy) pthread_cond_wait(&changed, &lock);
}

// Adds an operation to a stream, and with `is_waiting` waits for it.
static int submit(void *handle, Operation operation, int is_waiting, const char *call) {
    pthread_mutex_lock(&lock);
    Stream *stream = opened(handle);
    note("%s %p %p %zu stream %d", call, (void *)operation.to, (const void *)operation.from, operation.width * operation.height,
         stream->number);
    add(stream, operation);
    if (is_waiting) drain(stream);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

// Devices. A program that looks for the driver's file finds it if this library is preloaded.

int statx(int folder, const char *path, int flags, unsigned mask, void *result) {
    if (path && !strcmp(path, "/proc/driver/nvidia/version")) path = "/proc/version";
    return syscall(SYS_statx, folder, path, flags, mask, result);
}
int cuInit(unsigned flags) { return flags ? INVALID_VALUE : SUCCESS; }
int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
int cuDeviceGetCount(int *count) { *count = variable("FAKE_CUDA_DEVICES", 1); return SUCCESS; }
int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < variable("FAKE_CUDA_DEVICES", 1) ? SUCCESS : INVALID_DEVICE;
}
int cuDeviceGetName(char *name, int len, int device) {
    (void)device;
    snprintf(name, len, "%s", generation()->name);
    return SUCCESS;
}
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    memset(uuid, device, 16);
    return SUCCESS;
}
int cuDeviceGetPCIBusId(char *id, int len, int device) {
    snprintf(id, len, "0000:%02x:00.0", device + 1);
    return SUCCESS;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    *bytes = (size_t)32 << 30;
    return SUCCESS;
}
int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = *total = (size_t)32 << 30;
    return SUCCESS;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    const Generation *found = generation();
    switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break; // threads per block; block along x and y
    case 4: *value = 64; break;                   // block along z
    case 5: *value = 0x7fffffff; break;           // grid along x
    case 6: case 7: *value = 0xffff; break;       // grid along y and z
    case 8: *value = 48 << 10; break;             // shared memory of a block
    case 10: *value = 32; break;                  // warp
    case 16: *value = found->processors; break;
    case 75: *value = found->sm / 10; break;
    case 76: *value = found->sm % 10; break;
    case 97: *value = found->shared_bytes; break; // shared memory of a block that asks for more
    case 115: *value = 1; break;                  // memory pools
    default: *value = 0;
    }
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = (void *)(intptr_t)(device + 1);
    return SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return SUCCESS; }
int cuCtxSetCurrent(void *context) { current = context; return SUCCESS; }
int cuCtxGetCurrent(void **context) { *context = current; return SUCCESS; }
int cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = *greatest = 0; return SUCCESS; }
int cuCtxSynchronize(void) {
    pthread_mutex_lock(&lock);
    for (Stream *stream = streams; stream; stream = stream->next) drain(stream);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
int cuGetErrorName(int error, const char **text) {
    *text = error == NOT_READY ? "CUDA_ERROR_NOT_READY" : error == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR";
    return SUCCESS;
}
int cuGetErrorString(int error, const char **text) {
    *text = error == INVALID_VALUE ? "invalid argument" : error == NO_BINARY ? "no kernel for this GPU" : "error";
    return SUCCESS;
}

// Memory. The page before each allocation has its size. New pages are zeros.

int cuMemAlloc_v2(char **address, size_t bytes) {
    char *page = mmap(NULL, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (page == MAP_FAILED) return OUT_OF_MEMORY;
    *(size_t *)page = bytes + 4096;
    *address = page + 4096;
    return SUCCESS;
}
int cuMemAllocAsync(char **address, size_t bytes, void *stream) { (void)stream; return cuMemAlloc_v2(address, bytes); }
int cuMemFree_v2(char *address) {
    cuCtxSynchronize();
    perform(&(Operation){.kind = RELEASE, .to = address});
    return SUCCESS;
}
int cuMemFreeAsync(char *address, void *stream) {
    return submit(stream, (Operation){.kind = RELEASE, .to = address}, 0, "free");
}
int cuMemAllocHost_v2(char **address, size_t bytes) { return cuMemAlloc_v2(address, bytes); }
int cuMemHostAlloc(char **address, size_t bytes, unsigned flags) { (void)flags; return cuMemAlloc_v2(address, bytes); }
int cuMemFreeHost(char *address) { return cuMemFree_v2(address); }

static Operation copy(char *to, const char *from, size_t bytes) {
    return (Operation){.kind = COPY, .to = to, .from = from, .width = bytes, .height = 1};
}
int cuMemcpyHtoDAsync_v2(char *to, const char *from, size_t bytes, void *stream) {
    return submit(stream, copy(to, from, bytes), 0, "upload");
}
int cuMemcpyDtoHAsync_v2(char *to, const char *from, size_t bytes, void *stream) {
    return submit(stream, copy(to, from, bytes), 0, "download");
}
int cuMemcpyDtoDAsync_v2(char *to, const char *from, size_t bytes, void *stream) {
    return submit(stream, copy(to, from, bytes), 0, "copy");
}
int cuMemcpyHtoD_v2(char *to, const char *from, size_t bytes) { return submit(NULL, copy(to, from, bytes), 1, "upload"); }
int cuMemcpyDtoH_v2(char *to, const char *from, size_t bytes) { return submit(NULL, copy(to, from, bytes), 1, "download"); }
int cuMemsetD8Async(char *to, unsigned char value, size_t bytes, void *stream) {
    return submit(stream, (Operation){.kind = FILL, .to = to, .width = bytes, .height = 1, .number = value}, 0, "fill");
}

typedef struct {
    size_t x, y;
    unsigned type; // 1: host, 2: device
    char *host, *device;
    void *array;
    size_t pitch;
} Side;
typedef struct {
    Side from, to;
    size_t width, height;
} Copy2D;
int cuMemcpy2DAsync_v2(const Copy2D *plan, void *stream) {
    Side from = plan->from, to = plan->to;
    Operation operation = {
        .kind = COPY,
        .to = (to.type == 1 ? to.host : to.device) + to.y * to.pitch + to.x,
        .from = (from.type == 1 ? from.host : from.device) + from.y * from.pitch + from.x,
        .width = plan->width,
        .height = plan->height,
        .to_pitch = to.pitch,
        .from_pitch = from.pitch,
    };
    return submit(stream, operation, 0, to.type == 1 ? "download" : from.type == 1 ? "upload" : "copy");
}

// Streams and events.

int cuStreamCreate(Stream **stream, unsigned flags) {
    (void)flags;
    *stream = calloc(1, sizeof **stream);
    pthread_mutex_lock(&lock);
    start(*stream);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
int cuStreamCreateWithPriority(Stream **stream, unsigned flags, int priority) { (void)priority; return cuStreamCreate(stream, flags); }
int cuStreamSynchronize(void *handle) {
    pthread_mutex_lock(&lock);
    drain(opened(handle));
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
// The memory of a stream stays, because an event may name its capture.
int cuStreamDestroy_v2(Stream *stream) {
    pthread_mutex_lock(&lock);
    stream->is_ended = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
int cuStreamIsCapturing(void *handle, int *status) {
    pthread_mutex_lock(&lock);
    *status = opened(handle)->capture != NULL;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
int cuEventCreate(Event **event, unsigned flags) { (void)flags; *event = calloc(1, sizeof **event); return SUCCESS; }
// Pending operations may name the event, so its memory stays.
int cuEventDestroy_v2(Event *event) { (void)event; return SUCCESS; }
int cuEventRecord(Event *event, void *handle) {
    pthread_mutex_lock(&lock);
    Stream *stream = opened(handle);
    event->capture = stream->capture;
    if (!event->capture) {
        event->recorded++;
        add(stream, (Operation){.kind = RECORD, .event = event, .number = event->recorded});
    }
    note("record %p stream %d", (void *)event, stream->number);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
// A stream that waits for an event of a capture joins the capture, whose operations keep the order
// of the calls.
int cuStreamWaitEvent(void *handle, Event *event, unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    Stream *stream = opened(handle);
    if (event->capture)
        stream->capture = event->capture;
    else
        add(stream, (Operation){.kind = WAIT, .event = event, .number = event->recorded});
    note("wait %p stream %d", (void *)event, stream->number);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
int cuEventQuery(Event *event) {
    pthread_mutex_lock(&lock);
    int is_done = event->completed >= event->recorded;
    pthread_mutex_unlock(&lock);
    return is_done ? SUCCESS : NOT_READY;
}
int cuEventSynchronize(Event *event) {
    pthread_mutex_lock(&lock);
    while (event->completed < event->recorded) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
int cuEventElapsedTime_v2(float *milliseconds, Event *first, Event *last) { *milliseconds = last->time - first->time; return SUCCESS; }
int cuEventElapsedTime(float *milliseconds, Event *first, Event *last) { return cuEventElapsedTime_v2(milliseconds, first, last); }
int cuLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    return submit(stream, (Operation){.kind = CALL, .function = function, .to = data}, 0, "call");
}

// Kernels. A module is its text in PTX, which names the generation.

int cuModuleLoadData(const char **module, const char *ptx) {
    const char *target = strstr(ptx, ".target sm_");
    if (!target || atoi(target + 11) != generation()->sm) return NO_BINARY;
    *module = ptx;
    return SUCCESS;
}
int cuModuleUnload(void *module) { (void)module; return SUCCESS; }
int cuModuleGetFunction(Function **function, const char *module, const char *name) {
    *function = calloc(1, sizeof **function);
    char library[2048];
    if (sscanf(module, "%*s %*s //emulated %2047s", library) == 1) {
        void *handle = dlopen(library, RTLD_NOW);
        if (!handle) return NO_BINARY;
        *(void **)&(*function)->copy = dlsym(handle, "copy_arguments");
        *(void **)&(*function)->run = dlsym(handle, "run_kernel");
    }
    snprintf((*function)->name, sizeof (*function)->name, "%s", name);
    (*function)->shared_bytes = 48 << 10;
    pthread_mutex_lock(&lock);
    note("function %s", name);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
int cuFuncSetAttribute(Function *function, int attribute, int value) {
    if (attribute != 8) return SUCCESS; // 8: most dynamic shared memory
    if (value > generation()->shared_bytes) return INVALID_VALUE;
    function->shared_bytes = value;
    return SUCCESS;
}
int cuLaunchKernel(Function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes,
                   void *handle, void **arguments, void **extra) {
    (void)extra;
    Launch *launch = NULL;
    if (function->copy) {
        launch = malloc(sizeof *launch);
        *launch = (Launch){function, {{gx, gy, gz}, {bx, by, bz}}, function->copy(arguments)};
    }
    pthread_mutex_lock(&lock);
    Stream *stream = opened(handle);
    int is_wrong = !gx || !gy || !gz || gy > 0xffff || gz > 0xffff || !bx || !by || !bz || bz > 64 || (size_t)bx * by * bz > 1024 ||
                   (int)shared_bytes > function->shared_bytes;
    note("%s %s grid %u %u %u block %u %u %u shared %u stream %d", is_wrong ? "refused" : stream->capture ? "captured" : "launch",
         function->name, gx, gy, gz, bx, by, bz, shared_bytes, stream->number);
    if (!is_wrong) add(stream, (Operation){.kind = KERNEL, .launch = launch});
    pthread_mutex_unlock(&lock);
    return is_wrong ? INVALID_VALUE : SUCCESS;
}
int cuTensorMapEncodeTiled(void *map) { memset(map, 0, 128); return SUCCESS; }
int cuTensorMapEncodeIm2col(void *map) { return cuTensorMapEncodeTiled(map); }
int cuTensorMapEncodeIm2colWide(void *map) { return cuTensorMapEncodeTiled(map); }

// Captured steps.

int cuStreamBeginCapture_v2(Stream *stream, int mode) {
    (void)mode;
    pthread_mutex_lock(&lock);
    stream->capture = calloc(1, sizeof *stream->capture);
    stream->capture->end = &stream->capture->first;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
int cuStreamEndCapture(Stream *stream, Graph **graph) {
    pthread_mutex_lock(&lock);
    *graph = stream->capture;
    for (Stream *other = streams; other; other = other->next)
        if (other->capture == *graph) other->capture = NULL;
    note("graph %p operations %zu kernels %zu", (void *)*graph, (*graph)->operations, (*graph)->kernels);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
int cuGraphGetNodes(Graph *graph, void **nodes, size_t *count) { (void)nodes; *count = nodes ? *count : 0; (void)graph; return SUCCESS; }
int cuGraphNodeGetType(void *node, int *type) { (void)node; *type = 0; return SUCCESS; }
int cuGraphInstantiateWithFlags(Graph **executable, Graph *graph, unsigned long long flags) {
    (void)flags;
    *executable = graph;
    return SUCCESS;
}
// The executable is the graph.
int cuGraphDestroy(Graph *graph) { (void)graph; return SUCCESS; }
int cuGraphExecDestroy(Graph *graph) { (void)graph; return SUCCESS; }
int cuGraphUpload(Graph *graph, void *stream) { (void)graph, (void)stream; return SUCCESS; }
int cuGraphLaunch(Graph *graph, void *handle) {
    pthread_mutex_lock(&lock);
    Stream *stream = opened(handle);
    note("replay %p stream %d", (void *)graph, stream->number);
    for (Operation *op = graph->first; op; op = op->next) add(stream, *op);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
