// A driver that computes nothing: CUDA's interfaces, as far as Troupe and ONNX Runtime's CUDA provider call them, on a machine
// without a GPU. One library stands for libcuda, libcudart, libcublas, libcublasLt and libcurand of CUDA 13.
//
// Memory is the host's and copies are made, but kernels and products are not run: results are zeros or what was there before.
// What is seen is everything that is asked of a GPU: who takes how much memory and gives it back, in which stream work is put,
// whether launches, copies and products are possible at all. Each goes into the file that STAND_IN_ACCOUNT names, a line
// each; what no GPU would do begins with "wrong". STAND_IN_MEMORY is the memory in bytes, STAND_IN_DRIVER the version;
// STAND_IN_GRAPHS=none refuses to record work.
//
// Functions that are not here are made by the test, return 0 and do nothing. Layouts are those of CUDA 13's headers.
#define _GNU_SOURCE
#include <elf.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct {
  unsigned x, y, z;
} Extent;

enum { FAILED = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, NOT_RECORDED = 900, HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, DEVICE_TO_DEVICE = 3, ANY_KIND = 4 };
enum { STATIC_SHARED = 48 * 1024, MOST_SHARED = 227 * 1024, MOST_THREADS = 1024, MOST_YZ = 65535 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t total = (size_t)79 << 30, used;
static int driver = 13000;

__attribute__((constructor)) static void begin(void) {
  const char *memory = getenv("STAND_IN_MEMORY"), *version = getenv("STAND_IN_DRIVER");
  if (memory) total = strtoull(memory, NULL, 10);
  if (version) driver = atoi(version);
}

static void account(const char* format, ...) {
  static FILE* file;
  va_list arguments;
  pthread_mutex_lock(&lock);
  if (!file) {
    const char* path = getenv("STAND_IN_ACCOUNT");
    file = path ? fopen(path, "a") : stderr;
    setvbuf(file, NULL, _IOLBF, 0);
  }
  va_start(arguments, format);
  vfprintf(file, format, arguments);
  va_end(arguments);
  fputc('\n', file);
  pthread_mutex_unlock(&lock);
}

// ---- work that is recorded, by the thread that asks for it
static __thread void* recording;
static __thread size_t noted;
static void unrecorded(const char* what) {
  if (recording) account("wrong: %s while work is recorded", what);
}
static int wait(void) { return unrecorded("a wait"), account("wait"), 0; }

// ---- memory
typedef struct {
  char* at;
  size_t bytes, taken;
  int on_device;
} Piece;
enum { MOST_PIECES = 1 << 16 };
static Piece pieces[MOST_PIECES];
static int piece_count;

static int take(void** at, size_t bytes, int on_device) {
  size_t taken = (bytes + 4095) / 4096 * 4096 + (bytes == 0 ? 4096 : 0);
  *at = NULL;
  if (on_device && used + taken > total) return OUT_OF_MEMORY;
  char* found = mmap(NULL, taken, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return OUT_OF_MEMORY;
  pthread_mutex_lock(&lock);
  int place = 0;
  while (place < piece_count && pieces[place].at) place++;
  if (place == MOST_PIECES) abort();
  if (place == piece_count) piece_count++;
  pieces[place] = (Piece){found, bytes, taken, on_device};
  if (on_device) used += taken;
  size_t now = used;
  pthread_mutex_unlock(&lock);
  unrecorded("memory is taken");
  if (on_device) account("take %zu used %zu", bytes, now);
  *at = found;
  return 0;
}
static int give(void* at) {
  if (!at) return 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < piece_count; i++)
    if (pieces[i].at == at) {
      Piece piece = pieces[i];
      pieces[i].at = NULL;
      if (piece.on_device) used -= piece.taken;
      size_t now = used;
      pthread_mutex_unlock(&lock);
      munmap(at, piece.taken);
      if (piece.on_device) account("give %zu used %zu", piece.bytes, now);
      return 0;
    }
  pthread_mutex_unlock(&lock);
  account("wrong: memory is given back that was never taken");
  return FAILED;
}
// Whether an address is the device's; that as many bytes follow is checked.
static int on_device(const void* at, size_t bytes) {
  int found = 0, whole = 1;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < piece_count && !found; i++) {
    Piece* piece = &pieces[i];
    if (!piece->at || !piece->on_device || (char*)at < piece->at || (char*)at >= piece->at + piece->taken) continue;
    found = 1;
    whole = (char*)at + bytes <= piece->at + piece->bytes;
  }
  pthread_mutex_unlock(&lock);
  if (!whole) account("wrong: %zu bytes reach over the end of what was taken", bytes);
  return found;
}
static int copy(void* to, const void* from, size_t bytes, int kind) {
  if (!bytes) return 0;
  int to_device = on_device(to, bytes), from_device = on_device(from, bytes);
  int is = to_device ? (from_device ? DEVICE_TO_DEVICE : HOST_TO_DEVICE) : (from_device ? DEVICE_TO_HOST : 0);
  if (kind != ANY_KIND && kind != is) account("wrong: a copy of kind %d is of kind %d", kind, is);
  if (is != DEVICE_TO_DEVICE) unrecorded("a copy from or to the host");
  memmove(to, from, bytes);
  return 0;
}
// Large fresh pieces are zeros already, and stay without memory behind them.
static int fill(void* at, int value, size_t bytes) {
  if (bytes && !on_device(at, bytes)) account("wrong: memory that is not the device's is filled");
  char *first = (char*)(((uintptr_t)at + 4095) & ~(uintptr_t)4095), *last = (char*)(((uintptr_t)at + bytes) & ~(uintptr_t)4095);
  if (value || last <= first) return memset(at, value, bytes), 0;
  memset(at, 0, first - (char*)at);
  madvise(first, last - first, MADV_DONTNEED);
  memset(last, 0, (char*)at + bytes - last);
  return 0;
}

// ---- launches
static void launched(const char* name, Extent grid, Extent block, size_t shared, void* stream) {
  size_t threads = (size_t)block.x * block.y * block.z;
  int possible = grid.x && grid.y && grid.z && grid.y <= MOST_YZ && grid.z <= MOST_YZ && threads && threads <= MOST_THREADS &&
                 shared <= MOST_SHARED;
  if (recording) noted++;
  if (recording && stream != recording) account("wrong: %s is launched beside what is recorded", name);
  account("%s %s grid %u %u %u threads %zu shared %zu stream %p", possible ? (recording ? "noted" : "launch") : "wrong: launch", name,
          grid.x, grid.y, grid.z, threads, shared, stream);
}

// ---- what a device says of itself: an H100
static int attribute(int* value, int which) {
  static const int known[][2] = {{1, 1024}, {8, STATIC_SHARED}, {10, 32}, {16, 132}, {39, 2048}, {75, 9}, {76, 0}, {81, 233472}, {97, MOST_SHARED}, {115, 1}};
  *value = 0;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (known[i][0] == which) *value = known[i][1];
  return 0;
}
int cudaGetDeviceProperties(char* properties, int device) {
  static const struct { int at, value; } numbers[] = {{304, 65536}, {308, 32}, {320, 1024}, {324, 1024}, {328, 1024}, {332, 64}, {336, 2147483647}, {340, 65535}, {344, 65535}, {360, 9}, {384, 132}, {596, 50 << 20}, {604, 2048}, {632, 65536}};
  static const struct { int at; size_t value; } sizes[] = {{296, STATIC_SHARED}, {624, 233472}, {672, MOST_SHARED}};
  memset(properties, 0, 1008);
  strcpy(properties, "a stand-in");
  memcpy(properties + 288, &total, sizeof total);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) memcpy(properties + numbers[i].at, &numbers[i].value, sizeof(int));
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) memcpy(properties + sizes[i].at, &sizes[i].value, sizeof(size_t));
  return 0;
}
static int free_memory(size_t* free, size_t* all) { return *free = total - used, *all = total, 0; }
static int handle(void** made) { return (*made = malloc(8)) ? 0 : OUT_OF_MEMORY; }

// ---- the runtime
int cudaGetDeviceCount(int* count) { return *count = 1, 0; }
int cudaGetDevice(int* device) { return *device = 0, 0; }
int cudaRuntimeGetVersion(int* version) { return *version = 13000, 0; }
int cudaDriverGetVersion(int* version) { return *version = driver, 0; }
int cudaDeviceGetAttribute(int* value, int which, int device) { return attribute(value, which); }
int cudaMalloc(void** at, size_t bytes) { return take(at, bytes, 1); }
int cudaMallocHost(void** at, size_t bytes) { return take(at, bytes, 0); }
int cudaHostAlloc(void** at, size_t bytes, unsigned flags) { return take(at, bytes, 0); }
int cudaFree(void* at) { return give(at); }
int cudaFreeHost(void* at) { return give(at); }
int cudaMemGetInfo(size_t* free, size_t* all) { return free_memory(free, all); }
int cudaMemcpy(void* to, const void* from, size_t bytes, int kind) { return copy(to, from, bytes, kind); }
int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) { return copy(to, from, bytes, kind); }
int cudaMemset(void* at, int value, size_t bytes) { return fill(at, value, bytes); }
int cudaMemsetAsync(void* at, int value, size_t bytes, void* stream) { return fill(at, value, bytes); }
int cudaStreamCreate(void** stream) { return handle(stream); }
int cudaStreamCreateWithFlags(void** stream, unsigned flags) { return handle(stream); }
int cudaStreamSynchronize(void* stream) { return wait(); }
int cudaDeviceSynchronize(void) { return wait(); }
int cudaStreamIsCapturing(void* stream, int* status) { return *status = recording && stream == recording, 0; }
int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* data) { return unrecorded("a call of the host"), function(data), 0; }
int cudaEventCreate(void** event) { return handle(event); }
int cudaEventCreateWithFlags(void** event, unsigned flags) { return handle(event); }
const char* cudaGetErrorString(int error) { return error == OUT_OF_MEMORY ? "out of memory" : "an error"; }
const char* cudaGetErrorName(int error) { return "anError"; }
int cudaFuncGetAttributes(char* attributes, const void* function) {
  static const struct { int at, value; } numbers[] = {{24, MOST_THREADS}, {28, 64}, {36, 90}, {44, STATIC_SHARED}};
  memset(attributes, 0, 144);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) memcpy(attributes + numbers[i].at, &numbers[i].value, sizeof(int));
  return 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* f, int threads, size_t shared, unsigned flags) {
  return *blocks = 1, 0;
}
int cudaPointerGetAttributes(char* attributes, const void* at) {
  int kind = on_device(at, 0) ? 2 : 0;
  memset(attributes, 0, 88);
  memcpy(attributes, &kind, sizeof kind);
  memcpy(attributes + 8, &at, sizeof at);
  return 0;
}
int cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned version, unsigned long long flags, int* status) {
  *found = NULL;
  if (status) *status = 1;
  return 0;
}
void** __cudaRegisterFatBinary(void* binary) {
  static void* registered;
  return &registered;
}
static __thread struct { Extent grid, block; size_t shared; void* stream; } next;
unsigned __cudaPushCallConfiguration(Extent grid, Extent block, size_t shared, void* stream) {
  next.grid = grid, next.block = block, next.shared = shared, next.stream = stream;
  return 0;
}
int __cudaPopCallConfiguration(Extent* grid, Extent* block, size_t* shared, void** stream) {
  *grid = next.grid, *block = next.block, *shared = next.shared, *stream = next.stream;
  return 0;
}
int __cudaGetKernel(void** kernel, const void* function) { return *kernel = (void*)function, 0; }
int cudaLaunchKernel(const void* function, Extent grid, Extent block, void** arguments, size_t shared, void* stream) {
  return launched("theirs", grid, block, shared, stream), 0;
}
int __cudaLaunchKernel(const void* function, Extent grid, Extent block, void** arguments, size_t shared, void* stream) {
  return launched("theirs", grid, block, shared, stream), 0;
}
int cudaLaunchKernelExC(const char* how, const void* function, void** arguments) {
  Extent grid, block;
  size_t shared;
  void* stream;
  memcpy(&grid, how, sizeof grid), memcpy(&block, how + 12, sizeof block), memcpy(&shared, how + 24, sizeof shared);
  memcpy(&stream, how + 32, sizeof stream);
  return launched("theirs", grid, block, shared, stream), 0;
}

// ---- the driver
static __thread void* current;
static int primary;
int cuDriverGetVersion(int* version) { return *version = driver, 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int number) { return *device = number, 0; }
int cuDeviceGetName(char* name, int length, int device) { return snprintf(name, length, "a stand-in"), 0; }
int cuDeviceGetAttribute(int* value, int which, int device) { return attribute(value, which); }
static int holders, graphs;
int cuDevicePrimaryCtxRetain(void** context, int device) { return __sync_add_and_fetch(&holders, 1), *context = &primary, 0; }
int cuDevicePrimaryCtxRelease_v2(int device) {
  if (!__sync_sub_and_fetch(&holders, 1) && graphs) account("wrong: %d recordings are left behind", graphs);
  return account("context left with %zu", used), 0;
}
int cuCtxGetCurrent(void** context) { return *context = current, 0; }
int cuCtxSetCurrent(void* context) { return current = context, 0; }
int cuMemGetInfo_v2(size_t* free, size_t* all) { return free_memory(free, all); }
int cuMemAlloc_v2(void** at, size_t bytes) { return take(at, bytes, 1); }
int cuMemFree_v2(void* at) { return give(at); }
int cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream) { return copy(to, from, bytes, HOST_TO_DEVICE); }
int cuMemcpyDtoHAsync_v2(void* to, const void* from, size_t bytes, void* stream) { return copy(to, from, bytes, DEVICE_TO_HOST); }
int cuMemcpyDtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream) { return copy(to, from, bytes, DEVICE_TO_DEVICE); }
int cuMemsetD8Async(void* at, unsigned char value, size_t bytes, void* stream) { return fill(at, value, bytes); }
int cuStreamCreate(void** stream, unsigned flags) { return handle(stream); }
int cuStreamSynchronize(void* stream) { return wait(); }
int cuStreamBeginCapture_v2(void* stream, int mode) {
  const char* graphs = getenv("STAND_IN_GRAPHS");
  if (graphs && !strcmp(graphs, "none")) return NOT_RECORDED;
  return recording = stream, noted = 0;
}
int cuStreamEndCapture(void* stream, size_t** graph) {
  if (recording != stream) account("wrong: a recording ends that was not begun");
  *graph = malloc(sizeof **graph);
  **graph = noted, recording = NULL;
  return account("recorded %zu stream %p", noted, stream), 0;
}
int cuGraphInstantiateWithFlags(size_t** made, const size_t* graph, uint64_t flags) {
  *made = malloc(sizeof **made);
  **made = *graph, __sync_add_and_fetch(&graphs, 1);
  return 0;
}
int cuGraphDestroy(size_t* graph) { return free(graph), 0; }
int cuGraphExecDestroy(size_t* made) { return free(made), __sync_sub_and_fetch(&graphs, 1), 0; }
int cuGraphLaunch(const size_t* made, void* stream) { return unrecorded("a repetition"), account("repeat %zu stream %p", *made, stream), 0; }
int cuGetErrorName(int error, const char** name) { return *name = "AN_ERROR", 0; }
int cuGetErrorString(int error, const char** text) { return *text = error == OUT_OF_MEMORY ? "out of memory" : "an error", 0; }
int cuGetExportTable(const void** table, const void* id) { return *table = NULL, NOT_FOUND; }

// A module is its CUBIN, an ELF file: each kernel has a section of code, and one of shared memory where it takes any.
typedef struct {
  char name[128];
  unsigned fixed, dynamic;
} Function;
int cuModuleLoadData(void** module, const char* image) {
  const Elf64_Ehdr* head = (const Elf64_Ehdr*)image;
  const Elf64_Shdr* sections = (const Elf64_Shdr*)(image + head->e_shoff);
  size_t end = head->e_shoff + head->e_shnum * sizeof *sections;
  for (int i = 0; i < head->e_shnum; i++)
    if (sections[i].sh_type != SHT_NOBITS && sections[i].sh_offset + sections[i].sh_size > end)
      end = sections[i].sh_offset + sections[i].sh_size;
  *module = memcpy(malloc(end), image, end);
  return 0;
}
int cuModuleUnload(void* module) { return free(module), 0; }
int cuModuleGetFunction(void** function, const char* image, const char* name) {
  const Elf64_Ehdr* head = (const Elf64_Ehdr*)image;
  const Elf64_Shdr* sections = (const Elf64_Shdr*)(image + head->e_shoff);
  const char* names = image + sections[head->e_shstrndx].sh_offset;
  Function* made = calloc(1, sizeof *made);
  char code[160], shared[160];
  int there = 0;
  snprintf(made->name, sizeof made->name, "%s", name);
  snprintf(code, sizeof code, ".text.%s", name), snprintf(shared, sizeof shared, ".nv.shared.%s", name);
  for (int i = 0; i < head->e_shnum; i++) {
    there |= !strcmp(names + sections[i].sh_name, code);
    if (!strcmp(names + sections[i].sh_name, shared)) made->fixed = (unsigned)sections[i].sh_size;
  }
  *function = made;
  return there ? 0 : NOT_FOUND;
}
int cuFuncSetAttribute(Function* function, int which, int value) {
  if (which == 8 && value + function->fixed > MOST_SHARED) return FAILED;
  if (which == 8) function->dynamic = (unsigned)value;
  return 0;
}
int cuLaunchKernel(Function* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void* stream, void** arguments, void** extra) {
  // More than this is refused unless it was announced.
  unsigned plain = STATIC_SHARED - function->fixed, most = function->dynamic > plain ? function->dynamic : plain;
  if (shared > most) account("wrong: %s takes %u bytes of shared memory, of %u announced", function->name, shared, most);
  launched(function->name, (Extent){gx, gy, gz}, (Extent){bx, by, bz}, shared, stream);
  return 0;
}

// ---- products
typedef struct {
  int compute, transposed[2];
} Product;
typedef struct {
  int type, batch;
  uint64_t rows, columns;
  int64_t stride;
} Layout;
int cublasCreate_v2(void** made) { return handle(made); }
int cublasLtCreate(void** made) { return handle(made); }
size_t cublasLtGetVersion(void) { return 130002; }
int cublasLtMatmulDescCreate(Product** made, int compute, int scale) {
  *made = calloc(1, sizeof **made);
  (*made)->compute = compute;
  return 0;
}
int cublasLtMatmulDescSetAttribute(Product* product, int which, const int* value, size_t bytes) {
  if (which == 3 || which == 4) product->transposed[which - 3] = *value;
  return 0;
}
int cublasLtMatrixLayoutCreate(Layout** made, int type, uint64_t rows, uint64_t columns, int64_t stride) {
  *made = malloc(sizeof **made);
  **made = (Layout){type, 1, rows, columns, stride};
  return 0;
}
int cublasLtMatrixLayoutSetAttribute(Layout* layout, int which, const int* value, size_t bytes) {
  if (which == 5) layout->batch = *value;
  return 0;
}
int cublasLtMatmulPreferenceCreate(void** made) { return handle(made); }
int cublasLtMatmulAlgoGetHeuristic(void* lt, Product* p, Layout* a, Layout* b, Layout* c, Layout* d, void* preference, int wanted,
                                   char* results, int* found) {
  memset(results, 0, 96);
  return *found = 1, 0;
}
static void operand(const char* name, const Layout* layout, const void* at) {
  size_t value = layout->type == 0 ? 4 : 2, bytes = ((layout->columns - 1) * layout->stride + layout->rows) * value;
  if (layout->stride < (int64_t)layout->rows) account("wrong: %s has columns of %lu every %ld values", name, layout->rows, layout->stride);
  if (!on_device(at, bytes)) account("wrong: %s of a product is not on the device", name);
}
int cublasLtMatmul(void* lt, Product* p, const void* alpha, const void* a, Layout* la, const void* b, Layout* lb, const void* beta,
                   const void* c, Layout* lc, void* d, Layout* ld, const void* algorithm, void* room, size_t bytes, void* stream) {
  uint64_t m = p->transposed[0] ? la->columns : la->rows, k = p->transposed[0] ? la->rows : la->columns;
  uint64_t k2 = p->transposed[1] ? lb->columns : lb->rows, n = p->transposed[1] ? lb->rows : lb->columns;
  if (k != k2 || m != ld->rows || n != ld->columns) account("wrong: product of %lu x %lu by %lu x %lu", m, k, k2, n);
  if (p->compute != 68) account("wrong: sums are not f32");
  operand("the first factor", la, a), operand("the second factor", lb, b), operand("the result", ld, d);
  if (bytes && !on_device(room, bytes)) account("wrong: a product's room is not on the device");
  account("product %lu %lu %lu stream %p", m, n, k, stream);
  return 0;
}
int cublasGemmEx(void* blas, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int at, int lda, const void* b,
                 int bt, int ldb, const void* beta, void* c, int ct, int ldc, int compute, int algorithm) {
  if (compute != 68) account("wrong: sums are not f32");
  return account("product of theirs %d %d %d", m, n, k), 0;
}
