// CUDA's run-time compiler without CUDA, for tests: `libnvrtc.so`.
//
// The "PTX" of a program names a library for the CPU, which g++ makes with emulated.h. cuda.c opens
// it and runs the kernel. The library is kept in the folder of libnvrtc.so by a hash of its source.
//
// Source: NVIDIA, NVRTC, user guide.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char *source, *log;
    char ptx[4096];
} Program;

static char *folder(void) {
    Dl_info info;
    return dladdr((void *)folder, &info) ? dirname(strdup(info.dli_fname)) : ".";
}

static char *contents(const char *path) {
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t len = 0;
    if (!file || getdelim(&text, &len, 0, file) < 0) text = strdup("");
    if (file) fclose(file);
    return text;
}

// Replaces each occurrence by a text of the same length.
static void replace(char *text, const char *from, const char *to) {
    while ((text = strstr(text, from))) memcpy(text, to, strlen(to));
}

// Replaces atomic sums, which CubeCL writes in PTX. Blocks run one after the other.
static void replace_atomics(char *text) {
    static const char BEGIN[] = "asm volatile(\"atom.relaxed.add.f32 %0, [%1], %2;\"";
    while ((text = strstr(text, BEGIN))) {
        char place[64], value[64], *end = strchr(text + sizeof BEGIN, ';');
        if (!end || sscanf(text + sizeof BEGIN - 1, " : \"=f\"(result) : \"l\"(%63[a-z0-9_]), \"f\"(%63[a-z0-9_])", place, value) != 2) return;
        memset(text, ' ', end - text);
        text += sprintf(text, "result = *(float *)%s; *(float *)%s += %s", place, place, value);
        *text = ' ';
    }
}

int nvrtcCreateProgram(Program **program, const char *source) {
    *program = calloc(1, sizeof **program);
    (*program)->source = strdup(source);
    (*program)->log = strdup("");
    replace((*program)->source, "#include", "//nclude");
    replace_atomics((*program)->source);
    return 0;
}

int nvrtcCompileProgram(Program *program, int num_options, const char *const *options) {
    const char *arch = "";
    for (int i = 0; i < num_options; i++)
        if (strstr(options[i], "sm_")) arch = strstr(options[i], "sm_");
    // FNV-1a.
    uint64_t hash = 0xcbf29ce484222325;
    for (const char *at = program->source; *at; at++) hash = (hash ^ (unsigned char)*at) * 0x100000001b3;
    char name[512] = "", base[2048];
    const char *kernel = strstr(program->source, "__launch_bounds__(");
    if (kernel) sscanf(strchr(kernel, ')'), ") %511[A-Za-z0-9_]", name);
    snprintf(base, sizeof base, "%s/%016lx", folder(), (unsigned long)hash);
    snprintf(program->ptx, sizeof program->ptx, ".target %s\n//emulated %s.so\n", arch, base);
    char *library, *cpp, *errors, *command;
    asprintf(&library, "%s.so", base);
    asprintf(&cpp, "%s.cpp", base);
    asprintf(&errors, "%s.txt", base);
    if (!access(library, R_OK)) return 0;
    FILE *file = fopen(cpp, "w");
    if (!file) return 1;
    fprintf(file, "%s\n", program->source);
    const char *shared = strstr(program->source, "extern __shared__");
    char memory[64];
    if (shared && sscanf(strstr(shared, "char "), "char %63[a-z0-9_]", memory) == 1) fprintf(file, "alignas(128) char %s[256 << 10];\n", memory);
    fprintf(file, "extern \"C\" void *copy_arguments(void **values) { return emulated::copied(%s, values); }\n", name);
    fprintf(file, "static void body(void *arguments) { emulated::call(%s, arguments); }\n", name);
    fprintf(file, "%s", "extern \"C\" void run_kernel(uint3 *sizes, void *arguments) { emulated::run(body, sizes[0], sizes[1], arguments); }\n");
    fclose(file);
    // Under another name first, as another process may look for the library.
    asprintf(&command, "g++ %s -include %s/emulated.h -o %s.%d %s 2> %s && mv %s.%d %s", "-std=c++17 -O1 -march=native -w -fno-strict-aliasing -shared -fPIC",
             folder(), base, (int)getpid(), cpp, errors, base, (int)getpid(), library);
    if (!system(command)) return 0;
    program->log = contents(errors);
    return 6;
}

int nvrtcGetProgramLogSize(Program *program, size_t *size) { *size = strlen(program->log) + 1; return 0; }
int nvrtcGetProgramLog(Program *program, char *log) { strcpy(log, program->log); return 0; }
int nvrtcGetPTXSize(Program *program, size_t *size) { *size = strlen(program->ptx) + 1; return 0; }
int nvrtcGetPTX(Program *program, char *ptx) { strcpy(ptx, program->ptx); return 0; }
int nvrtcDestroyProgram(Program **program) { *program = NULL; return 0; }
const char *nvrtcGetErrorString(int result) { return result ? "compilation failed" : "success"; }
