/*
 * A libnvidia-ml.so.1 for tests, which answers from a text file.
 *
 * The environment variable FAKE_NVML names the file. It is read at every nvmlInitWithFlags, so that
 * a test can change the machine between two readings. Each line is one answer:
 *
 *     <scope> <query> <answer>
 *
 * scope is the index of a card, `*` for every card, or `system`. The last matching line counts;
 * without one the answer is NVML_ERROR_NOT_SUPPORTED. An answer is
 *
 *     a text or a number     returned as it is; several numbers have blanks between them
 *     !<number>              that nvmlReturn_t
 *     ~<path> <answer>       blocks until the path exists, then returns the answer
 *
 * As in the real library, the cards are counted when NVML is initialised, and not again until it is
 * shut down as often as it was initialised.
 *
 * Events are the lines `<card> <type> <data>` that are added to the file $FAKE_NVML.events while an
 * event set waits. The query `events` of a card is the mask of types that it supports;
 * `system event_wait` is queried before each wait.
 *
 * The file $FAKE_NVML.open has the indices of the cards that the process keeps open.
 *
 * At most two threads may call; calls from a third return NVML_ERROR_UNKNOWN. -DOLD_DRIVER omits the
 * functions that drivers before 510 lack, and -DNO_EVENTS those for events.
 *
 * Layouts and numbers: nvml.h.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    UNKNOWN = 999,
};
enum { MAX_CARDS = 64, MAX_ANSWER = 256, MAX_THREADS = 2, MEMORY_V2 = 0x02000028 };
enum { RECOVERY_ACTION = 230, UNSIGNED_INT = 1 };

typedef int Return;
typedef struct { int index; } *Device;

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned value_type, result;
    union { unsigned number; double wide; } value;
} FieldValue;
typedef struct {
    Device device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} EventData;
typedef struct { unsigned long long types[MAX_CARDS]; long offset; } *EventSet;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below but the answers */
static char machine[1 << 16];
static int started;
static unsigned counted;
static long threads[MAX_THREADS];
static int cards[MAX_CARDS];
static int is_open[MAX_CARDS];

static int is_known_thread(void)
{
    long self = syscall(SYS_gettid);
    int known = 0;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_THREADS && !known; i++) {
        if (threads[i] == 0)
            threads[i] = self;
        known = threads[i] == self;
    }
    pthread_mutex_unlock(&lock);
    return known;
}

static void read_machine(void)
{
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t length = file ? fread(machine, 1, sizeof machine - 1, file) : 0;

    machine[length] = '\0';
    if (file)
        fclose(file);
}

static void write_open(void)
{
    const char *machine_file = getenv("FAKE_NVML");
    char path[4096];
    FILE *file;

    if (!machine_file)
        return;
    snprintf(path, sizeof path, "%s.open", machine_file);
    file = fopen(path, "w");
    for (int i = 0; file && i < MAX_CARDS; i++)
        if (is_open[i])
            fprintf(file, "%d ", i);
    if (file)
        fclose(file);
}

/* Copies the answer of the last matching line. */
static int find(const char *scope, const char *question, char *answer)
{
    char line_scope[16], line_question[32], value[MAX_ANSWER];
    int found = 0;

    for (const char *line = machine; *line; ) {
        const char *end = strchr(line, '\n');

        value[0] = '\0';
        if (sscanf(line, "%15s %31s %255[^\n]", line_scope, line_question, value) >= 2
            && strcmp(line_question, question) == 0
            && (strcmp(line_scope, scope) == 0
                || (strcmp(line_scope, "*") == 0 && strcmp(scope, "system") != 0))) {
            strcpy(answer, value);
            found = 1;
        }
        if (!end)
            break;
        line = end + 1;
    }
    return found;
}

static Return ask(const char *scope, const char *question, char *answer)
{
    int found;

    if (!is_known_thread())
        return UNKNOWN;
    pthread_mutex_lock(&lock);
    found = find(scope, question, answer);
    pthread_mutex_unlock(&lock);
    if (!found)
        return NOT_SUPPORTED;
    if (answer[0] == '~') {
        char path[MAX_ANSWER], rest[MAX_ANSWER] = "";

        sscanf(answer + 1, "%255s %255[^\n]", path, rest);
        while (access(path, F_OK) != 0)
            usleep(5000);
        strcpy(answer, rest);
    }
    return answer[0] == '!' ? atoi(answer + 1) : SUCCESS;
}

static Return ask_system(const char *question, char *answer)
{
    return started ? ask("system", question, answer) : UNINITIALIZED;
}

static Return ask_card(Device device, const char *question, char *answer)
{
    char scope[16];

    if (!started)
        return UNINITIALIZED;
    snprintf(scope, sizeof scope, "%d", device->index);
    return ask(scope, question, answer);
}

static Return card_text(Device device, const char *question, char *text, unsigned length)
{
    char answer[MAX_ANSWER];
    Return result = ask_card(device, question, answer);

    if (result != SUCCESS)
        return result;
    if (strlen(answer) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(text, answer);
    return SUCCESS;
}

static Return card_number(Device device, const char *question, unsigned *number)
{
    char answer[MAX_ANSWER];
    Return result = ask_card(device, question, answer);

    if (result == SUCCESS)
        *number = (unsigned)strtoul(answer, NULL, 0);
    return result;
}

Return nvmlInitWithFlags(unsigned flags)
{
    char answer[MAX_ANSWER];
    Return result;

    (void)flags;
    pthread_mutex_lock(&lock);
    read_machine();
    pthread_mutex_unlock(&lock);
    result = ask("system", "init", answer);
    if (result == NOT_SUPPORTED)
        result = SUCCESS;
    if (result != SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    if (started++ == 0 && find("system", "count", answer))
        counted = answer[0] == '!' ? 0 : (unsigned)atoi(answer);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

Return nvmlShutdown(void)
{
    Return result = SUCCESS;

    pthread_mutex_lock(&lock);
    if (!started)
        result = UNINITIALIZED;
    else if (--started == 0) {
        memset(is_open, 0, sizeof is_open);
        write_open();
    }
    pthread_mutex_unlock(&lock);
    return result;
}

const char *nvmlErrorString(Return result)
{
    (void)result;
    return "an error of the fake";
}

Return nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    char answer[MAX_ANSWER];
    Return result = ask_system("driver", answer);

    if (result == SUCCESS)
        snprintf(version, length, "%s", answer);
    return result;
}

Return nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    char answer[MAX_ANSWER];
    Return result = ask_system("cuda", answer);

    if (result == SUCCESS)
        *version = atoi(answer);
    return result;
}

Return nvmlDeviceGetCount_v2(unsigned *count)
{
    char answer[MAX_ANSWER];
    Return result = ask_system("count", answer);

    if (result == SUCCESS)
        *count = counted;
    return result;
}

Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device)
{
    char answer[MAX_ANSWER];
    Return result;

    if (index >= MAX_CARDS)
        return INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    cards[index] = (int)index;
    if (started && !is_open[index]) {
        is_open[index] = 1;
        write_open();
    }
    pthread_mutex_unlock(&lock);
    *device = (Device)&cards[index];
    result = ask_card(*device, "handle", answer);
    return result == NOT_SUPPORTED ? SUCCESS : result;
}

Return nvmlDeviceGetUUID(Device device, char *uuid, unsigned length)
{
    return card_text(device, "uuid", uuid, length);
}

Return nvmlDeviceGetName(Device device, char *name, unsigned length)
{
    return card_text(device, "name", name, length);
}

Return nvmlDeviceGetMemoryInfo(Device device, Memory *memory)
{
    char answer[MAX_ANSWER];
    Return result = ask_card(device, "memory", answer);

    if (result == SUCCESS)
        memory->total = strtoull(answer, NULL, 0);
    return result;
}

Return nvmlDeviceGetPciInfo_v3(Device device, PciInfo *pci)
{
    return card_text(device, "pci", pci->bus_id, sizeof pci->bus_id);
}

Return nvmlDeviceGetMinorNumber(Device device, unsigned *minor)
{
    return card_number(device, "minor", minor);
}

Return nvmlDeviceGetBrand(Device device, unsigned *brand)
{
    return card_number(device, "brand", brand);
}

Return nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor)
{
    char answer[MAX_ANSWER];
    Return result = ask_card(device, "compute_capability", answer);

    if (result == SUCCESS)
        sscanf(answer, "%d %d", major, minor);
    return result;
}

Return nvmlDeviceGetMaxClockInfo(Device device, int type, unsigned *clock)
{
    (void)type;
    return card_number(device, "clock", clock);
}

/* The query `nvlink<number>` is `<active> <type of the other end> <its PCI bus ID>`. */
static Return link_answer(Device device, unsigned link, unsigned *active, unsigned *type, char *bus)
{
    char question[32], answer[MAX_ANSWER];
    Return result;

    snprintf(question, sizeof question, "nvlink%u", link);
    result = ask_card(device, question, answer);
    if (result == SUCCESS && sscanf(answer, "%u %u %31s", active, type, bus) != 3)
        result = UNKNOWN;
    return result;
}

Return nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *active)
{
    unsigned type;
    char bus[32];

    return link_answer(device, link, active, &type, bus);
}

Return nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned link, unsigned *type)
{
    unsigned active;
    char bus[32];

    return link_answer(device, link, &active, type, bus);
}

Return nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned link, PciInfo *pci)
{
    unsigned active, type;

    return link_answer(device, link, &active, &type, pci->bus_id);
}

#ifndef NO_EVENTS
Return nvmlEventSetCreate(EventSet *set)
{
    if (!started)
        return UNINITIALIZED;
    *set = calloc(1, sizeof **set);
    (*set)->offset = -1;
    return SUCCESS;
}

Return nvmlEventSetFree(EventSet set)
{
    free(set);
    return SUCCESS;
}

Return nvmlDeviceGetSupportedEventTypes(Device device, unsigned long long *types)
{
    char answer[MAX_ANSWER];
    Return result = ask_card(device, "events", answer);

    if (result == SUCCESS)
        *types = strtoull(answer, NULL, 0);
    return result;
}

/* Lines that are in the file already are past events. */
static FILE *open_events(EventSet set)
{
    char path[4096];
    FILE *file;

    snprintf(path, sizeof path, "%s.events", getenv("FAKE_NVML"));
    file = fopen(path, "r");
    if (set->offset < 0) {
        set->offset = 0;
        if (file && fseek(file, 0, SEEK_END) == 0)
            set->offset = ftell(file);
    }
    return file;
}

Return nvmlDeviceRegisterEvents(Device device, unsigned long long types, EventSet set)
{
    FILE *file = open_events(set);

    if (file)
        fclose(file);
    set->types[device->index] |= types;
    return is_known_thread() ? SUCCESS : UNKNOWN;
}

static int next_event(EventSet set, EventData *event)
{
    FILE *file = open_events(set);
    int found = 0, index;

    if (!file)
        return 0;
    fseek(file, set->offset, SEEK_SET);
    while (!found && fscanf(file, "%d %llu %llu\n", &index, &event->type, &event->data) == 3) {
        event->device = (Device)&cards[index];
        found = (set->types[index] & event->type) != 0;
    }
    set->offset = ftell(file);
    fclose(file);
    return found;
}

Return nvmlEventSetWait_v2(EventSet set, EventData *event, unsigned timeout_ms)
{
    char answer[MAX_ANSWER];
    Return result = ask_system("event_wait", answer);

    if (result != NOT_SUPPORTED && result != SUCCESS)
        return result;
    for (unsigned waited_ms = 0; waited_ms < timeout_ms; waited_ms += 5) {
        if (next_event(set, event))
            return SUCCESS;
        usleep(5000);
    }
    return TIMEOUT;
}
#endif

#ifndef OLD_DRIVER
Return nvmlDeviceGetFieldValues(Device device, int count, FieldValue *values)
{
    for (int i = 0; i < count; i++) {
        values[i].result = NOT_SUPPORTED;
        values[i].value_type = UNSIGNED_INT;
        if (values[i].field == RECOVERY_ACTION)
            values[i].result = (unsigned)card_number(device, "recovery", &values[i].value.number);
    }
    return SUCCESS;
}

Return nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2 *memory)
{
    char answer[MAX_ANSWER];
    Return result = ask_card(device, "memory", answer);

    if (memory->version != MEMORY_V2)
        return INVALID_ARGUMENT;
    if (result != SUCCESS)
        return result;
    memory->total = strtoull(answer, NULL, 0);
    result = ask_card(device, "reserved", answer);
    if (result == SUCCESS)
        memory->reserved = strtoull(answer, NULL, 0);
    return result;
}

Return nvmlDeviceGetArchitecture(Device device, unsigned *architecture)
{
    return card_number(device, "architecture", architecture);
}

Return nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending)
{
    char answer[MAX_ANSWER];
    Return result = ask_card(device, "mig", answer);

    if (result == SUCCESS)
        sscanf(answer, "%u %u", current, pending);
    return result;
}

Return nvmlDeviceGetNumGpuCores(Device device, unsigned *cores)
{
    return card_number(device, "cores", cores);
}
#endif
