/* What update asks of MPI. Compiled by mpicc, so that constants and handles are those of the library at hand. Lengths are bytes,
   of which MPI counts an int's worth at once: longer messages go in pieces. What is said among all ranks is OF_ALL, what among those
   of one policy OF_SOME. */

#include <mpi.h>
#include <stddef.h>

#define MOST ((size_t)1 << 30)

static MPI_Comm communicators[2]; /* OF_ALL, OF_SOME */
static MPI_Comm sending;
static MPI_Request request;
static int sender;
static char *rest;
static size_t left;
/* Of as many ranks as there may be parts. */
static MPI_Request arrivals[1024], told[1024];

void ranks_start(int *rank, int *count) {
    int provided;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    communicators[0] = MPI_COMM_WORLD;
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, count);
}

void ranks_split(int which, int *rank, int *count) {
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_split(MPI_COMM_WORLD, which, *rank, &communicators[1]);
    MPI_Comm_rank(communicators[1], rank);
    MPI_Comm_size(communicators[1], count);
}

static void next_piece(void) {
    size_t piece = left < MOST ? left : MOST;
    MPI_Ibcast(rest, (int)piece, MPI_BYTE, sender, sending, &request);
    rest += piece;
    left -= piece;
}

void ranks_broadcast_begin(int of, int root, void *bytes, size_t length) {
    sending = communicators[of];
    sender = root;
    rest = bytes;
    left = length;
    next_piece();
}

int ranks_broadcast_is_done(void) {
    int done;
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (!done || left == 0) return done;
    next_piece();
    return 0;
}

/* Everyone tells everyone that it is here; a message of no bytes is never kept waiting. */
void ranks_arrive(int of) {
    MPI_Comm ranks = communicators[of];
    int rank, count;
    MPI_Comm_rank(ranks, &rank);
    MPI_Comm_size(ranks, &count);
    for (int other = 0; other < count; other++) {
        arrivals[other] = told[other] = MPI_REQUEST_NULL;
        if (other == rank) continue;
        MPI_Irecv(NULL, 0, MPI_BYTE, other, 0, ranks, &arrivals[other]);
        MPI_Isend(NULL, 0, MPI_BYTE, other, 0, ranks, &told[other]);
    }
}

int ranks_is_there(int other) {
    int done;
    MPI_Test(&arrivals[other], &done, MPI_STATUS_IGNORE);
    return done;
}

void ranks_have_arrived(int of) {
    int count;
    MPI_Comm_size(communicators[of], &count);
    MPI_Waitall(count, told, MPI_STATUSES_IGNORE);
}

void ranks_all_gather(int of, const void *own, size_t length, void *all) {
    MPI_Comm ranks = communicators[of];
    int count;
    MPI_Comm_size(ranks, &count);
    if (length <= MOST) {
        MPI_Allgather(own, (int)length, MPI_BYTE, all, (int)length, MPI_BYTE, ranks);
        return;
    }
    /* Rank by rank, in pieces. */
    int rank;
    MPI_Comm_rank(ranks, &rank);
    for (int root = 0; root < count; root++) {
        char *place = (char *)all + (size_t)root * length;
        if (root == rank) __builtin_memcpy(place, own, length);
        for (size_t from = 0; from < length; from += MOST) {
            size_t piece = length - from < MOST ? length - from : MOST;
            MPI_Bcast(place + from, (int)piece, MPI_BYTE, root, ranks);
        }
    }
}

void ranks_all_to_all(int of, const void *own, size_t length, void *received) {
    MPI_Alltoall(own, (int)length, MPI_BYTE, received, (int)length, MPI_BYTE, communicators[of]);
}

/* Lengths are those of pieces of a tensor, far from an int's limit; as many as there may be parts. */
void ranks_gather_on_first(int of, const void *own, size_t length, void *all, const size_t *lengths) {
    static int counts[1024], places[1024];
    int count, place = 0;
    MPI_Comm_size(communicators[of], &count);
    for (int rank = 0; rank < count; rank++) {
        counts[rank] = (int)lengths[rank];
        places[rank] = place;
        place += counts[rank];
    }
    MPI_Gatherv(own, (int)length, MPI_BYTE, all, counts, places, MPI_BYTE, 0, communicators[of]);
}

void ranks_finish(void) {
    MPI_Finalize();
}

void ranks_abort(int code) {
    MPI_Abort(MPI_COMM_WORLD, code);
}
