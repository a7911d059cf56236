// An NCCL that sends through files, for machines without several GPUs: the functions that Troupe calls, between threads or
// processes. Memory is the host's, as in the simulator and in driver.c.
//
// Like a communicator that does not block, a call returns at once and ncclCommGetAsyncError says when it is done: a thread of
// each communicator does the work. What NCCL would not accept ends the process with a line on stderr. STAND_IN_NCCL_FAILS="1 3"
// lets group 3 of rank 1 fail, STAND_IN_NCCL_DIES kills its process there; compiled with FAILING_GROUP, that group fails on all
// ranks. STAND_IN_NCCL_LOG names a file that gets a line for each group.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef FAILING_GROUP
#define FAILING_GROUP -1
#endif
enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6, IN_PROGRESS = 7, MAX_RANKS = 16, MAX_CALLS = 4096 };
enum { SEND, RECEIVE };
typedef struct {
  char folder[128];
} Id;
typedef struct {
  size_t size;
  unsigned magic, version;
  int blocking;
} Config;
typedef struct {
  int kind, peer;
  char* at;
  size_t bytes;
} Call;
typedef struct {
  char folder[128];
  int rank, count, state, aborted, groups, calls;
  long sent[MAX_RANKS], received[MAX_RANKS];
  Call call[MAX_CALLS];
  const void* stream;
  pthread_t thread;
  int has_thread;
} Comm;

static __thread int depth;
static __thread Comm* grouped;

static void stop(const char* cause) {
  fprintf(stderr, "stand-in NCCL: %s\n", cause);
  abort();
}
static void set(Comm* comm, int state) { __atomic_store_n(&comm->state, state, __ATOMIC_SEQ_CST); }
static int is_aborted(Comm* comm) { return __atomic_load_n(&comm->aborted, __ATOMIC_SEQ_CST); }
static int faulty(Comm* comm, const char* variable) {
  int rank = -1, group = -1;
  const char* text = getenv(variable);
  if (text) sscanf(text, "%d %d", &rank, &group);
  return comm->rank == rank && comm->groups == group;
}
static void path(char* to, const char* folder, int from, int peer, long number, const char* end) {
  snprintf(to, 256, "%s/%d-%d-%ld%s", folder, from, peer, number, end);
}

static void send_file(Comm* comm, Call* call) {
  char part[256], whole[256];
  long number = comm->sent[call->peer]++;
  path(part, comm->folder, comm->rank, call->peer, number, ".part");
  path(whole, comm->folder, comm->rank, call->peer, number, "");
  FILE* file = fopen(part, "wb");
  if (!file || fwrite(call->at, 1, call->bytes, file) != call->bytes || fclose(file) || rename(part, whole)) stop("a file cannot be written");
}
// Returns 0 where the communicator was aborted first.
static int receive_file(Comm* comm, Call* call) {
  char whole[256];
  struct stat found;
  path(whole, comm->folder, call->peer, comm->rank, comm->received[call->peer]++, "");
  while (stat(whole, &found)) {
    if (is_aborted(comm)) return 0;
    usleep(50);
  }
  if ((size_t)found.st_size != call->bytes) stop("a rank receives another length than was sent");
  FILE* file = fopen(whole, "rb");
  if (!file || fread(call->at, 1, call->bytes, file) != call->bytes || fclose(file) || unlink(whole)) stop("a file cannot be read");
  return 1;
}
static void* run_group(void* of) {
  Comm* comm = of;
  // The sends of a group come first, so that no order of calls blocks.
  for (int i = 0; i < comm->calls; i++)
    if (comm->call[i].kind == SEND) send_file(comm, &comm->call[i]);
  for (int i = 0; i < comm->calls; i++)
    if (comm->call[i].kind == RECEIVE && !receive_file(comm, &comm->call[i])) return NULL;
  return set(comm, SUCCESS), NULL;
}
static void* run_join(void* of) {
  Comm* comm = of;
  char mark[256];
  path(mark, comm->folder, comm->rank, comm->rank, -1, "");
  fclose(fopen(mark, "w"));
  for (int rank = 0; rank < comm->count; rank++) {
    path(mark, comm->folder, rank, rank, -1, "");
    while (access(mark, F_OK)) {
      if (is_aborted(comm)) return NULL;
      usleep(50);
    }
  }
  return set(comm, SUCCESS), NULL;
}
static int start(Comm* comm, void* (*work)(void*)) {
  if (comm->has_thread) pthread_join(comm->thread, NULL);
  set(comm, IN_PROGRESS);
  comm->has_thread = !pthread_create(&comm->thread, NULL, work, comm);
  return comm->has_thread ? IN_PROGRESS : SYSTEM_ERROR;
}
static int add(Comm* comm, int kind, int peer, void* at, size_t bytes, const void* stream) {
  if (!depth) stop("a call outside a group");
  if (grouped && grouped != comm) stop("a group of two communicators");
  if (peer < 0 || peer >= comm->count || !bytes || comm->calls == MAX_CALLS) return INVALID_ARGUMENT;
  if (!grouped) {
    if (__atomic_load_n(&comm->state, __ATOMIC_SEQ_CST) != SUCCESS) stop("a call before the last one is done");
    comm->calls = 0, comm->stream = stream;
  }
  if (comm->stream != stream) stop("a group in two streams");
  grouped = comm;
  comm->call[comm->calls++] = (Call){kind, peer, at, bytes};
  return SUCCESS;
}

int ncclGetVersion(int* version) { return *version = 22809, SUCCESS; }
int ncclGetUniqueId(Id* id) {
  const char* place = getenv("TMPDIR");
  memset(id, 0, sizeof *id);
  snprintf(id->folder, sizeof id->folder, "%s/stand-in-nccl-XXXXXX", place ? place : "/tmp");
  return mkdtemp(id->folder) ? SUCCESS : SYSTEM_ERROR;
}
int ncclCommInitRankConfig(void** made, int count, Id id, int rank, Config* config) {
  if (config->magic != 0xcafebeef || config->version < 21400 || config->size < sizeof *config || config->blocking) stop("a configuration that blocks");
  if (count > MAX_RANKS || rank < 0 || rank >= count) return INVALID_ARGUMENT;
  Comm* comm = calloc(1, sizeof *comm);
  memcpy(comm->folder, id.folder, sizeof comm->folder);
  comm->rank = rank, comm->count = count;
  *made = comm;
  return start(comm, run_join);
}
int ncclCommGetAsyncError(Comm* comm, int* state) { return *state = __atomic_load_n(&comm->state, __ATOMIC_SEQ_CST), SUCCESS; }
int ncclCommAbort(Comm* comm) {
  __atomic_store_n(&comm->aborted, 1, __ATOMIC_SEQ_CST);
  if (comm->has_thread) pthread_join(comm->thread, NULL);
  return free(comm), SUCCESS;
}
int ncclGroupStart(void) { return depth++, SUCCESS; }
int ncclGroupEnd(void) {
  if (--depth || !grouped) return SUCCESS;
  Comm* comm = grouped;
  const char* log = getenv("STAND_IN_NCCL_LOG");
  grouped = NULL;
  comm->groups++;
  if (log) {
    FILE* file = fopen(log, "a");
    fprintf(file, "rank %d of %d group %d calls %d stream %p\n", comm->rank, comm->count, comm->groups, comm->calls, comm->stream);
    fclose(file);
  }
  if (faulty(comm, "STAND_IN_NCCL_DIES")) raise(SIGKILL);
  if (faulty(comm, "STAND_IN_NCCL_FAILS") || comm->groups == FAILING_GROUP) return set(comm, REMOTE_ERROR), IN_PROGRESS;
  return start(comm, run_group);
}
int ncclSend(void* at, size_t count, int type, int peer, Comm* comm, void* stream) { return type ? INVALID_ARGUMENT : add(comm, SEND, peer, at, count, stream); }
int ncclRecv(void* at, size_t count, int type, int peer, Comm* comm, void* stream) { return type ? INVALID_ARGUMENT : add(comm, RECEIVE, peer, at, count, stream); }
int ncclBroadcast(void* from, void* to, size_t count, int type, int root, Comm* comm, void* stream) {
  if (from != to || type || root < 0 || root >= comm->count) return INVALID_ARGUMENT;
  if (root != comm->rank) return add(comm, RECEIVE, root, to, count, stream);
  int code = SUCCESS;
  for (int peer = 0; peer < comm->count && !code; peer++)
    if (peer != root) code = add(comm, SEND, peer, from, count, stream);
  return code;
}
const char* ncclGetErrorString(int code) {
  static const char* words[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument", "invalid usage", "remote process exited or there was a network error"};
  return code >= 0 && code <= REMOTE_ERROR ? words[code] : "unknown result code";
}
const char* ncclGetLastError(Comm* comm) { return ""; }
