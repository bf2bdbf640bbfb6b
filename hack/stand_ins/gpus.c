/* The cards of the stand-in libraries; see gpus.h. */
#define _GNU_SOURCE
#include "gpus.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_MADE_UP_PID = 1 << 22 }; /* the kernel's PIDs are below */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void read_line(Machine *machine, const char *line)
{
    Card card = {0};
    unsigned long long mib;

    sscanf(line, "block_ns %lu", &machine->block_ns);
    sscanf(line, "driver %31s", machine->driver);
    if (sscanf(line, "context_mib %llu", &mib) == 1)
        machine->context_bytes = mib * MIB;
    if (machine->count < MAX_CARDS
        && sscanf(line, "card %63s %31s %d %llu %d %63[^\n]", card.uuid, card.bus_id, &card.minor,
                  &mib, &card.multiprocessors, card.name) == 6) {
        card.bytes = mib * MIB;
        machine->cards[machine->count++] = card;
    }
}

static void find_visible(Machine *machine, int in_container)
{
    const char *named = getenv("STAND_IN_DEV");
    const char *dev = named ? named : in_container ? "/dev" : "";
    char path[4096];

    for (int i = 0; i < machine->count; i++) {
        snprintf(path, sizeof path, "%s/nvidia%d", dev, machine->cards[i].minor);
        if (dev[0] == '\0' || access(path, F_OK) == 0)
            machine->visible[machine->visible_count++] = i;
    }
}

static State *map_state(const char *path, int *file)
{
    State *state;

    *file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*file < 0)
        return NULL;
    fchmod(*file, 0666);
    if (ftruncate(*file, sizeof *state) != 0)
        return NULL;
    state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
    return state == MAP_FAILED ? NULL : state;
}

int machine_open(Machine *machine)
{
    const char *named = getenv("STAND_IN_GPUS");
    const char *path = named ? named : "/run/stand-in-gpus/cards";
    char line[512], state[4096];
    FILE *file = fopen(path, "r");

    memset(machine, 0, sizeof *machine);
    machine->block_ns = 20;
    strcpy(machine->driver, "550.54.15");
    while (file && fgets(line, sizeof line, file))
        read_line(machine, line);
    if (file)
        fclose(file);
    find_visible(machine, named == NULL);
    snprintf(state, sizeof state, "%s.state", path);
    if (machine->count > 0)
        machine->state = map_state(state, &machine->file);
    return machine->state != NULL;
}

/* Byte 0 of the state's file is the lock of all; byte 1 + n is held by the process at place n. */
static int byte_lock(int file, int command, short type, int byte)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

    if (fcntl(file, command, &range) != 0)
        return -1;
    return range.l_type == F_UNLCK ? 0 : 1;
}

void machine_lock(Machine *machine)
{
    pthread_mutex_lock(&lock);
    while (byte_lock(machine->file, F_OFD_SETLKW, F_WRLCK, 0) < 0)
        ;
}

void machine_unlock(Machine *machine)
{
    byte_lock(machine->file, F_OFD_SETLK, F_UNLCK, 0);
    pthread_mutex_unlock(&lock);
}

static int own_pid(State *state)
{
    char name[64] = "";

    /* The first PID namespace has this fixed number. */
    if (readlink("/proc/self/ns/pid", name, sizeof name - 1) > 0
        && strcmp(name, "pid:[4026531836]") == 0)
        return getpid();
    if (state->last_made_up_pid < FIRST_MADE_UP_PID)
        state->last_made_up_pid = FIRST_MADE_UP_PID;
    return ++state->last_made_up_pid;
}

Process *machine_enter(Machine *machine)
{
    for (int i = 0; i < MAX_PROCESSES; i++)
        if (byte_lock(machine->file, F_OFD_SETLK, F_WRLCK, 1 + i) >= 0) {
            Process *process = &machine->state->processes[i];

            memset(process, 0, sizeof *process);
            process->pid = own_pid(machine->state);
            return process;
        }
    return NULL;
}

int machine_is_alive(Machine *machine, int place)
{
    /* A new description of the file, because one does not see its own locks. */
    static int other = -1;
    char path[64];

    if (machine->state->processes[place].pid == 0)
        return 0;
    if (other < 0) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", machine->file);
        other = open(path, O_RDWR | O_CLOEXEC);
    }
    return byte_lock(other, F_OFD_GETLK, F_WRLCK, 1 + place) == 1;
}

uint64_t machine_bytes(Machine *machine, int card)
{
    uint64_t bytes = 0;

    for (int i = 0; i < MAX_PROCESSES; i++)
        if (machine->state->processes[i].bytes[card] && machine_is_alive(machine, i))
            bytes += machine->state->processes[i].bytes[card];
    return bytes;
}

unsigned machine_percent(const Process *process, int card)
{
    uint64_t now = machine_now_ns() / BUCKET_NS, busy_ns = 0;

    for (int i = 0; i < BUCKETS; i++) {
        const Bucket *bucket = &process->buckets[card][i];

        if (bucket->number < now && bucket->number + 10 >= now)
            busy_ns += bucket->busy_ns;
    }
    busy_ns /= 10 * BUCKET_NS / 100;
    return busy_ns > 100 ? 100 : (unsigned)busy_ns;
}

uint64_t machine_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}
