/*
 * A libnvidia-ml.so.1 for tests: it answers what a text file says.
 *
 * The environment variable FAKE_NVML names the file; it is read at every nvmlInitWithFlags, so a
 * test changes the machine between two readings. One line is one answer:
 *
 *     <scope> <question> <answer>
 *
 * scope is the index of a card, `*` for every card, or `system`. The last line that fits counts;
 * without one the question is NVML_ERROR_NOT_SUPPORTED. An answer is
 *
 *     a text or a number     given as it is, several numbers with blanks between them
 *     !<number>              that nvmlReturn_t
 *     ~<path> <answer>       does not return until the path exists, then gives the answer
 *
 * All calls must come from one thread; one from another is answered with NVML_ERROR_UNKNOWN.
 * -DOLD_DRIVER leaves out the functions that drivers before 510 lack.
 *
 * Layouts and numbers: nvml.h.
 */
#define _GNU_SOURCE
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
    UNKNOWN = 999,
};
enum { MAX_CARDS = 64, MAX_ANSWER = 256, MEMORY_V2 = 0x02000028 };

typedef int Return;
typedef struct { int index; } *Device;

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;

static char machine[1 << 16];
static int started;
static long thread;
static int cards[MAX_CARDS];

static void read_machine(void)
{
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t length = file ? fread(machine, 1, sizeof machine - 1, file) : 0;

    machine[length] = '\0';
    if (file)
        fclose(file);
}

/* Copies what the last fitting line says. */
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
    if (thread == 0)
        thread = syscall(SYS_gettid);
    if (thread != syscall(SYS_gettid))
        return UNKNOWN;
    if (!find(scope, question, answer))
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
    read_machine();
    result = ask("system", "init", answer);
    if (result == NOT_SUPPORTED)
        result = SUCCESS;
    if (result == SUCCESS)
        started++;
    return result;
}

Return nvmlShutdown(void)
{
    if (!started)
        return UNINITIALIZED;
    started--;
    return SUCCESS;
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
        *count = (unsigned)atoi(answer);
    return result;
}

Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device)
{
    char answer[MAX_ANSWER];
    Return result;

    if (index >= MAX_CARDS)
        return INVALID_ARGUMENT;
    cards[index] = (int)index;
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

#ifndef OLD_DRIVER
Return nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2 *memory)
{
    char answer[MAX_ANSWER];
    Return result = ask_card(device, "memory", answer);

    if (memory->version != MEMORY_V2)
        return INVALID_ARGUMENT;
    if (result == SUCCESS)
        memory->total = strtoull(answer, NULL, 0);
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
