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

const char *machine_path(void)
{
    const char *named = getenv("STAND_IN_GPUS");

    return named ? named : "/run/stand-in-gpus/cards";
}

int machine_find(const Machine *machine, const char *scope, const char *query, char *answer)
{
    char line_scope[16], line_query[32], value[MAX_ANSWER];
    int found = 0;

    for (const char *line = machine->text, *end; *line; line = end + 1) {
        value[0] = '\0';
        if (sscanf(line, "%15s %31s %255[^\n]", line_scope, line_query, value) >= 2
            && strcmp(line_query, query) == 0 && strcmp(line_scope, scope) == 0) {
            strcpy(answer, value);
            found = 1;
        }
        end = strchr(line, '\n');
        if (!end)
            break;
    }
    return found;
}

static uint64_t number(const Machine *machine, const char *scope, const char *query, uint64_t other)
{
    char answer[MAX_ANSWER];

    return machine_find(machine, scope, query, answer) ? strtoull(answer, NULL, 0) : other;
}

static int read_card(const Machine *machine, int index, Card *card)
{
    char scope[16], uuid[MAX_ANSWER];

    snprintf(scope, sizeof scope, "%d", index);
    machine_find(machine, scope, "pci", card->bus_id);
    machine_find(machine, scope, "name", card->name);
    card->minor = (int)number(machine, scope, "minor", 0);
    card->multiprocessors = (int)number(machine, scope, "multiprocessors", 0);
    card->bytes = number(machine, scope, "memory", 0);
    return machine_find(machine, scope, "uuid", uuid);
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

int machine_read(Machine *machine)
{
    FILE *file = fopen(machine_path(), "r");
    size_t length = file ? fread(machine->text, 1, sizeof machine->text - 1, file) : 0;

    if (!file)
        return 0;
    fclose(file);
    machine->text[length] = '\0';
    machine->count = machine->visible_count = 0;
    while (machine->count < MAX_CARDS
           && read_card(machine, machine->count, &machine->cards[machine->count]))
        machine->count++;
    machine->block_ns = number(machine, "system", "block_ns", 20);
    machine->context_bytes = number(machine, "system", "context_mib", 0) * MIB;
    find_visible(machine, getenv("STAND_IN_GPUS") == NULL);
    return 1;
}

/* Maps the state, if not done yet; 0 if that fails. */
static int map(Machine *machine, int flag)
{
    char path[4096];
    State *state;

    if (machine->state)
        return 1;
    snprintf(path, sizeof path, "%s.state", machine_path());
    machine->file = open(path, O_RDWR | O_CLOEXEC | flag, 0666);
    if (machine->file < 0)
        return 0;
    fchmod(machine->file, 0666);
    if (ftruncate(machine->file, sizeof *state) != 0)
        return 0;
    state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, machine->file, 0);
    if (state == MAP_FAILED)
        return 0;
    machine->state = state;
    return 1;
}

/* Byte 0 of the state's file is the lock of all; byte 1 + n is held by the process at place n. */
static int byte_lock(int file, int command, short type, int byte)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

    if (fcntl(file, command, &range) != 0)
        return -1;
    return range.l_type == F_UNLCK ? 0 : 1;
}

int machine_lock(Machine *machine, int flag)
{
    pthread_mutex_lock(&lock);
    if (!map(machine, flag)) {
        pthread_mutex_unlock(&lock);
        return 0;
    }
    while (byte_lock(machine->file, F_OFD_SETLKW, F_WRLCK, 0) < 0)
        ;
    return 1;
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
