/*
 * The cards of the stand-in libraries for CUDA and NVML, and what all processes on them share.
 *
 * The environment variable STAND_IN_GPUS names the file of the cards, /run/stand-in-gpus/cards
 * without it. Each line is one answer:
 *
 *     <scope> <query> <answer>
 *
 * scope is the index of a card, or `system`. The last matching line counts. NVML gives these
 * answers (nvml.c). Of a card, CUDA uses its pci, minor, name, memory (bytes) and
 * multiprocessors, and of the system
 *
 *     block_ns     time on the card of one block of a kernel; 20 without this line
 *     context_mib  memory of a process's primary context; 0 without this line
 *
 * A process sees only the cards whose device nodes are in the folder STAND_IN_DEV. Without that
 * variable it sees every card, or, with neither of the two variables as in a container, those in
 * /dev.
 *
 * Beside it, <file>.state is mapped by every process that uses CUDA: its memory on each card, and
 * until when each card is busy. A process holds a lock on its place there. The kernel drops the lock
 * when the process ends, so memory and work of a killed process go with it, and this holds across
 * PID namespaces.
 *
 * As for the real driver, PIDs are those of the host. A process in another PID namespace does not
 * know its own, so it gets a number above every real PID.
 */
#ifndef STAND_IN_GPUS_H
#define STAND_IN_GPUS_H

#include <stdint.h>
#include <sys/types.h>

enum { MAX_CARDS = 64, MAX_PROCESSES = 128, BUCKETS = 16, MAX_ANSWER = 256 };

#define MIB (1024ULL * 1024)
#define BUCKET_NS 100000000ULL /* 0.1 s */

typedef struct {
    char bus_id[MAX_ANSWER], name[MAX_ANSWER];
    int minor, multiprocessors;
    uint64_t bytes;
} Card;

typedef struct {
    uint64_t number, busy_ns; /* number: since the machine's start, in BUCKET_NS */
} Bucket;

typedef struct {
    int pid; /* on the host; 0 for a free place */
    uint64_t bytes[MAX_CARDS];
    Bucket buckets[MAX_CARDS][BUCKETS];
} Process;

typedef struct {
    int last_made_up_pid;
    uint64_t busy_until_ns[MAX_CARDS];
    Process processes[MAX_PROCESSES];
} State;

/* Cards and options as the file has them; `visible` are the indices of the visible cards. */
typedef struct {
    char text[1 << 16];
    Card cards[MAX_CARDS];
    int count, visible[MAX_CARDS], visible_count;
    uint64_t block_ns, context_bytes;
    State *state;
    int file;
} Machine;

/* The path of the file of the cards. */
const char *machine_path(void);

/* Reads the cards, again if they were read before; 0 without the file. */
int machine_read(Machine *machine);

/* Copies the answer of the last matching line into MAX_ANSWER bytes; 0 without one. */
int machine_find(const Machine *machine, const char *scope, const char *query, char *answer);

/*
 * Takes the lock that guards the state against all threads and processes; 0 if there is no state.
 * It is created with O_CREAT as the flag.
 */
int machine_lock(Machine *machine, int flag);
void machine_unlock(Machine *machine);

/* Returns a new place for this process; NULL if all are taken. Call it under the lock. */
Process *machine_enter(Machine *machine);

/* Returns 1 if a process holds the place. */
int machine_is_alive(Machine *machine, int place);

/* Bytes on a card of all processes. Call it under the lock. */
uint64_t machine_bytes(Machine *machine, int card);

/* Part of the last second in which the process had work on the card, in percent. */
unsigned machine_percent(const Process *process, int card);

uint64_t machine_now_ns(void);

#endif
