/* A small libnvidia-ml.so.1 for machines without a GPU: NVML clients load it as they load NVIDIA's.
 *
 * Its whole state is a text file, "libnvidia-ml.state" beside the library or the one that FAKE_NVML names. It is read
 * again whenever it has changed (write a new one and rename it over), so whoever writes it makes hardware fail:
 *
 *   driver 580.159.03
 *   cuda 13000
 *   init 9                        what nvmlInit answers; 9: the driver is not loaded
 *   gpu 0 uuid=GPU-... name=NVIDIA_H200 minor=0 bus=00000000:3b:00.0 mem=143771 cc=9.0 numa=0 mig=0 lost=0
 *         nvlinks=18 pending=0 failure=0 action=0 fabric=3,0,426 license=-1   (on one line; mem in MiB, name with _ for blanks;
 *                                 fabric: state, error, and health mask of the NVSwitch fabric;
 *                                 license: the state of a virtual GPU's license, -1: it is no virtual GPU)
 *   field 0 83 123456 3           what nvmlDeviceGetFieldValues answers of GPU 0 for field 83, and its type (NVML_VALUE_TYPE_*)
 * Each GPU takes 200 to 700 W, and a limit that somebody sets stays while this library is loaded.
 *   mig 0 0 uuid=MIG-... gi=1 ci=0 slices=1 mem=18000 sm=16      of GPU 0, number 0
 *   profile 1g.18gb id=19 slices=1 size=1 mem=16384 sm=16 ce=1 dec=1 jpeg=1 ofa=0 places=0,1,2,3,4,5,6
 *                                 a MIG profile that every GPU can have (on one line); without places none can be made
 *   topo 0 1 10                   the level between two GPUs, NVML_TOPOLOGY_*
 *   link 0 3 bus=00000000:c1:00.0 type=2                         NVLink 3 of GPU 0 is up; type 2: to a switch
 *   excluded 0000:3d:00.0         a GPU that the administrator has excluded from the driver
 *   proc 0 4711                   a compute process on GPU 0
 *   fail nvmlDeviceGetName 3 0    this call answers 3 (NOT_SUPPORTED), of GPU 0 only; without the last for all
 *
 * Instances that somebody makes are in the file with ".made" behind its name, and stay until they are destroyed or the file is
 * removed, as at a reboot. None is destroyed while a process computes on its GPU.
 *
 * A line "xid GPU CODE [GI CI]" or "mig GPU" appended to the file with ".events" behind its name is an event, given out
 * once by nvmlEventSetWait_v2. -DOLD leaves out what came with later drivers.
 *
 *   gcc -shared -fPIC -O1 -Wall -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 fabric.c -lpthread -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK, UNINIT, BADARG, NOTSUP, NOTFOUND = 6, SMALL, NODRIVER = 9, TIMEOUT, LOST = 15, INUSE = 19, INSUFFICIENT = 23 };
enum { XID = 8, MIG_CHANGE = 0x100 };
#define MAXG 16
#define MAXM 128
#define MAXF 64
#define MAXFIELD 320
typedef struct { char legacy[16]; unsigned domain, bus, device, devid, subsys; char busid[32]; } pci_t;
typedef struct { unsigned long long total, free, used; } mem_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } mem2_t;
typedef struct dev *dev_h;
typedef struct { dev_h dev; unsigned long long type, data; unsigned gi, ci; } event_t;
typedef struct { unsigned sm, ce, dec, enc, jpeg, ofa, gislices, cislices; unsigned long long memMB; } attr_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } proc_t;
typedef union { unsigned ui; unsigned long long ull; } value_t;
typedef struct { unsigned field, scope; long long stamp, latency; unsigned type, ret; value_t value; } field_t;
typedef struct { unsigned start, size; } place_t;
typedef struct { unsigned code, state; char info[128], product[128]; unsigned enabled, year; unsigned short date[5]; unsigned char status; } license_t;
typedef struct { int supported; unsigned count; license_t features[3]; } licenses_t;
typedef struct { dev_h dev; unsigned id, profile; place_t place; } gi_info_t;
typedef struct { dev_h dev; void *gi; unsigned id, profile; place_t place; } ci_info_t;
typedef struct { unsigned version, id, slices, count, sm, ce, dec, enc, jpeg, ofa; char name[96]; } ci_profile_t;
typedef struct { unsigned version, id, p2p, slices, count, sm, ce, dec, enc, jpeg, ofa; unsigned long long memMB; char name[96]; } profile_t;

struct dev {
    int used, index, minor, lost, mig, nvlinks, numa, ccmaj, ccmin, pending, failure, action, fabric[3], license;
    unsigned long long memMiB;
    char uuid[96], name[96], bus[32];
    int parent, gi, ci, slices, gislices, sm, profile; /* of a MIG device; its profile's number and one, if somebody made it */
    unsigned long long mask;                  /* the events that somebody asked for */
    unsigned power;                           /* the limit that somebody has set, in mW */
};
static struct dev gpu[MAXG], mig[MAXM];
static struct { char name[64]; int code, index; } fails[MAXF];
static struct { int index; unsigned pid; } procs[MAXM];
static struct { int known, type; unsigned long long value; } fields[MAXG][MAXFIELD];
static int ngpu, nmig, nfails, nprocs, nprofiles, initret, inited, cuda = 13000, topo[MAXG][MAXG], linktype[MAXG][32], linkup[MAXG][32];
static struct { char name[64]; int id, slices, size, mem, sm, ce, dec, jpeg, ofa, nplaces, places[8]; } profiles[16];
static struct made { int used, parent, profile, start, gi, ci; } made[MAXM / 2]; /* ci -1: none yet */
static int nexcluded;
static char excluded[MAXG][32];
static char driver[64], linkbus[MAXG][32][32], path[4096];
static struct timespec read_at, made_at;
static ino_t read_ino, made_ino;
static long events_at;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

static const char *state(void) {
    static char beside[4096];
    const char *told = getenv("FAKE_NVML");
    Dl_info info;
    if (told && *told) return told;
    if (!*beside && dladdr((void *)state, &info)) {
        snprintf(beside, sizeof beside - 32, "%s", info.dli_fname);
        char *slash = strrchr(beside, '/');
        strcpy(slash ? slash + 1 : beside, "libnvidia-ml.state");
    }
    return beside;
}

static void set(struct dev *d, const char *key, const char *v) {
    unsigned long long n = strtoull(v, 0, 0);
    if (!strcmp(key, "uuid")) snprintf(d->uuid, 96, "%s", v);
    else if (!strcmp(key, "name")) { snprintf(d->name, 96, "%s", v); for (char *c = d->name; *c; c++) if (*c == '_') *c = ' '; }
    else if (!strcmp(key, "bus")) snprintf(d->bus, 32, "%s", v);
    else if (!strcmp(key, "cc")) sscanf(v, "%d.%d", &d->ccmaj, &d->ccmin);
    else if (!strcmp(key, "minor")) d->minor = n;
    else if (!strcmp(key, "numa")) d->numa = atoi(v);
    else if (!strcmp(key, "mem")) d->memMiB = n;
    else if (!strcmp(key, "lost")) d->lost = n;
    else if (!strcmp(key, "mig")) d->mig = n;
    else if (!strcmp(key, "nvlinks")) d->nvlinks = n;
    else if (!strcmp(key, "pending")) d->pending = n;
    else if (!strcmp(key, "failure")) d->failure = n;
    else if (!strcmp(key, "action")) d->action = n;
    else if (!strcmp(key, "fabric")) sscanf(v, "%d,%d,%d", &d->fabric[0], &d->fabric[1], &d->fabric[2]);
    else if (!strcmp(key, "license")) d->license = atoi(v);
    else if (!strcmp(key, "gi")) d->gi = n;
    else if (!strcmp(key, "ci")) d->ci = n;
    else if (!strcmp(key, "slices")) d->slices = d->gislices = n;
    else if (!strcmp(key, "gislices")) d->gislices = n;
    else if (!strcmp(key, "sm")) d->sm = n;
}

static void load_state(void) {
    struct stat st;
    if (strcmp(path, state())) { snprintf(path, sizeof path, "%s", state()); read_ino = made_ino = 0; memset(made, 0, sizeof made); events_at = 0; memset(gpu, 0, sizeof gpu); }
    if (stat(path, &st) || (st.st_ino == read_ino && st.st_mtim.tv_sec == read_at.tv_sec && st.st_mtim.tv_nsec == read_at.tv_nsec)) return;
    FILE *f = fopen(path, "r");
    if (!f) return;
    read_at = st.st_mtim; read_ino = st.st_ino;
    for (int i = 0; i < MAXG; i++) gpu[i].used = 0;
    for (int i = 0; i < MAXM; i++) mig[i].used = 0;
    memset(linkup, 0, sizeof linkup);
    memset(fields, 0, sizeof fields);
    nexcluded = ngpu = nmig = nfails = nprocs = nprofiles = initret = 0;
    for (int i = 0; i < MAXG; i++) for (int j = 0; j < MAXG; j++) topo[i][j] = i == j ? 0 : 50;
    char line[1024];
    while (fgets(line, sizeof line, f)) {
        char *sv, *w = strtok_r(line, " \t\n", &sv), *word[3] = {"0", "0", "-1"};
        if (!w || *w == '#') continue;
        int named = !strcmp(w, "gpu") || !strcmp(w, "mig") || !strcmp(w, "link");
        for (int i = 0; i < (!strcmp(w, "gpu") || !strcmp(w, "profile") ? 1 : named ? 2 : 3); i++) { char *next = strtok_r(0, " \t\n", &sv); if (!next) break; word[i] = next; }
        int a = atoi(word[0]), b = atoi(word[1]);
        struct dev *d = 0;
        if (!strcmp(w, "driver")) snprintf(driver, 64, "%s", word[0]);
        else if (!strcmp(w, "cuda")) cuda = a;
        else if (!strcmp(w, "init")) initret = a;
        else if (!strcmp(w, "profile") && nprofiles < 16) {
            memset(&profiles[nprofiles], 0, sizeof profiles[0]);
            profiles[nprofiles].id = nprofiles;
            snprintf(profiles[nprofiles].name, 64, "%s", word[0]);
            for (char *kv; (kv = strtok_r(0, " \t\n", &sv));) {
                int *fields[] = {&profiles[nprofiles].id, &profiles[nprofiles].slices, &profiles[nprofiles].size, &profiles[nprofiles].mem,
                    &profiles[nprofiles].sm, &profiles[nprofiles].ce, &profiles[nprofiles].dec, &profiles[nprofiles].jpeg, &profiles[nprofiles].ofa};
                const char *keys[] = {"id=", "slices=", "size=", "mem=", "sm=", "ce=", "dec=", "jpeg=", "ofa="};
                for (int i = 0; i < 9; i++) if (!strncmp(kv, keys[i], strlen(keys[i]))) *fields[i] = atoi(kv + strlen(keys[i]));
                if (strncmp(kv, "places=", 7)) continue;
                for (char *c = kv + 6; c && profiles[nprofiles].nplaces < 8; c = strchr(c + 1, ',')) profiles[nprofiles].places[profiles[nprofiles].nplaces++] = atoi(c + 1);
            }
            nprofiles++;
        }
        else if (!strcmp(w, "excluded") && nexcluded < MAXG) snprintf(excluded[nexcluded++], 32, "%s", word[0]);
        else if (!strcmp(w, "topo")) topo[a][b] = topo[b][a] = atoi(word[2]);
        else if (!strcmp(w, "proc") && nprocs < MAXM) { procs[nprocs].index = a; procs[nprocs++].pid = b; }
        else if (!strcmp(w, "fail") && nfails < MAXF) { snprintf(fails[nfails].name, 64, "%s", word[0]); fails[nfails].code = b; fails[nfails++].index = atoi(word[2]); }
        else if (!strcmp(w, "field") && a < MAXG && b < MAXFIELD) { char *type = strtok_r(0, " \t\n", &sv); fields[a][b].known = 1; fields[a][b].value = strtoull(word[2], 0, 0); fields[a][b].type = type ? atoi(type) : 3; }
        else if (!strcmp(w, "link")) {
            linkup[a][b] = 1; linktype[a][b] = 0;
            for (char *kv; (kv = strtok_r(0, " \t\n", &sv));) {
                if (!strncmp(kv, "bus=", 4)) snprintf(linkbus[a][b], 32, "%s", kv + 4);
                if (!strncmp(kv, "type=", 5)) linktype[a][b] = atoi(kv + 5);
            }
        } else if (!strcmp(w, "gpu") && a < MAXG) { d = &gpu[a]; if (a >= ngpu) ngpu = a + 1; }
        else if (!strcmp(w, "mig") && nmig < MAXM / 2) d = &mig[nmig++];
        if (!d) continue;
        unsigned long long mask = d->mask;
        unsigned power = d->power;
        memset(d, 0, sizeof *d);
        d->mask = mask; d->power = power; d->used = 1; d->numa = d->license = -1; d->ccmaj = 9; d->minor = a;
        d->index = d < mig || d >= mig + MAXM ? a : b;
        d->parent = a;
        for (char *kv; (kv = strtok_r(0, " \t\n", &sv));) { char *v = strchr(kv, '='); if (v) { *v = 0; set(d, kv, v + 1); } }
    }
    fclose(f);
}

static int profile_of(unsigned id) { for (int i = 0; i < nprofiles; i++) if (profiles[i].id == (int)id) return i; return -1; }

/* What was made is behind the instances of the state's file, each at a place of its own. */
static void load(void) {
    char file[4200];
    struct stat st;
    ino_t before = read_ino;
    struct timespec at = read_at;
    load_state();
    snprintf(file, sizeof file, "%s.made", path);
    if (stat(file, &st)) { memset(&st, 0, sizeof st); memset(made, 0, sizeof made); }
    int same = st.st_ino == made_ino && st.st_mtim.tv_sec == made_at.tv_sec && st.st_mtim.tv_nsec == made_at.tv_nsec;
    if (same && before == read_ino && at.tv_sec == read_at.tv_sec && at.tv_nsec == read_at.tv_nsec) return;
    FILE *f = same ? 0 : fopen(file, "r");
    made_ino = st.st_ino; made_at = st.st_mtim;
    if (f) {
        struct made m;
        int slot;
        memset(made, 0, sizeof made);
        while (fscanf(f, "%d %d %d %d %d %d", &slot, &m.parent, &m.profile, &m.start, &m.gi, &m.ci) == 6) { m.used = 1; made[slot] = m; }
        fclose(f);
    }
    for (int k = 0; k < MAXM / 2; k++) {
        struct dev *d = &mig[MAXM / 2 + k];
        int p = made[k].used && made[k].ci >= 0 ? profile_of(made[k].profile) : -1;
        int was = d->used;
        d->used = 0;
        if (p < 0) continue;
        int index = d->index;
        memset(d, 0, sizeof *d);
        d->parent = made[k].parent; d->gi = made[k].gi; d->ci = made[k].ci; d->memMiB = profiles[p].mem;
        d->slices = d->gislices = profiles[p].slices; d->sm = profiles[p].sm; d->index = index; d->profile = p + 1;
        for (int i = 0; !was && i < MAXM; i++) { int taken = 0; for (int j = 0; j < MAXM; j++) taken |= mig[j].used && mig[j].parent == d->parent && mig[j].index == i; if (!taken) { d->index = i; break; } }
        snprintf(d->uuid, 96, "MIG-00000000-fa4e-%04x-%04x-%012x", d->parent, d->gi, d->ci);
        d->used = 1;
    }
}

static void save(void) {
    char file[4200], draft[4300];
    struct stat st;
    snprintf(file, sizeof file, "%s.made", path);
    snprintf(draft, sizeof draft, "%s.%d", file, getpid());
    FILE *f = fopen(draft, "w");
    if (!f) return;
    for (int k = 0; k < MAXM / 2; k++) if (made[k].used) fprintf(f, "%d %d %d %d %d %d\n", k, made[k].parent, made[k].profile, made[k].start, made[k].gi, made[k].ci);
    fclose(f);
    rename(draft, file);
    if (!stat(file, &st)) made_ino = 0; /* read it again: the devices are made of it */
}

#define MIGIS(d) ((d) >= mig && (d) < mig + MAXM)
static struct dev *phys(struct dev *d) { return MIGIS(d) ? &gpu[d->parent] : d; }

/* Every call: take the lock, look at the file, refuse what is to fail, and a device that is lost or unknown. */
static int enter(const char *name, struct dev *d) {
    if (!inited) return UNINIT;
    pthread_mutex_lock(&mu);
    load();
    int answer = OK;
    for (int i = 0; i < nfails; i++)
        if (!strcmp(fails[i].name, name) && (fails[i].index < 0 || (d && fails[i].index == phys(d)->index))) answer = fails[i].code;
    if (d && !((d >= gpu && d < gpu + MAXG) || MIGIS(d))) answer = BADARG;
    else if (d && (!d->used || d->lost || phys(d)->lost)) answer = LOST;
    pthread_mutex_unlock(&mu);
    return answer;
}
#define IN(d) do { int r_ = enter(__func__, d); if (r_) return r_; } while (0)
static int str(char *o, unsigned n, const char *s) { if (strlen(s) + 1 > n) return SMALL; strcpy(o, s); return OK; }

int nvmlInitWithFlags(unsigned f) { (void)f; pthread_mutex_lock(&mu); load(); int r = initret; if (!r) inited++; pthread_mutex_unlock(&mu); return r; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { if (!inited) return UNINIT; inited--; return OK; }
const char *nvmlErrorString(int r) { return r == OK ? "Success" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char *o, unsigned n) { IN(0); return str(o, n, driver); }
int nvmlSystemGetCudaDriverVersion_v2(int *o) { IN(0); *o = cuda; return OK; }
int nvmlSystemGetCudaDriverVersion(int *o) { IN(0); *o = cuda; return OK; }
int nvmlDeviceGetCount_v2(unsigned *n) { IN(0); *n = ngpu; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, dev_h *d) { IN(i < MAXG && gpu[i].used ? &gpu[i] : 0); if (i >= (unsigned)ngpu || !gpu[i].used) return BADARG; *d = &gpu[i]; return OK; }
int nvmlDeviceGetHandleByUUID(const char *u, dev_h *d) { IN(0);
    for (int i = 0; i < ngpu; i++) if (gpu[i].used && !strcmp(gpu[i].uuid, u)) { *d = &gpu[i]; return gpu[i].lost ? LOST : OK; }
    return NOTFOUND; }
int nvmlDeviceGetUUID(dev_h d, char *o, unsigned n) { IN(d); return str(o, n, d->uuid); }
int nvmlDeviceGetName(dev_h d, char *o, unsigned n) { IN(d); return str(o, n, phys(d)->name); }
int nvmlDeviceGetMinorNumber(dev_h d, unsigned *m) { IN(d); if (MIGIS(d)) return NOTSUP; *m = d->minor; return OK; }
static void fillpci(const char *bus, pci_t *p) { memset(p, 0, sizeof *p); sscanf(bus, "%x:%x:%x", &p->domain, &p->bus, &p->device); snprintf(p->busid, 32, "%s", bus); }
int nvmlDeviceGetPciInfo_v3(dev_h d, pci_t *p) { IN(d); fillpci(phys(d)->bus, p); return OK; }
int nvmlGetExcludedDeviceCount(unsigned *n) { IN(0); *n = nexcluded; return OK; }
int nvmlGetExcludedDeviceInfoByIndex(unsigned i, pci_t *p) { IN(0); if (i >= (unsigned)nexcluded) return BADARG; fillpci(excluded[i], p); return OK; }
int nvmlDeviceGetMemoryInfo(dev_h d, mem_t *m) { IN(d); m->total = d->memMiB << 20; m->used = m->total / 4; m->free = m->total - m->used; return OK; }
int nvmlDeviceGetMemoryInfo_v2(dev_h d, mem2_t *m) { IN(d); m->total = d->memMiB << 20; m->reserved = 480ull << 20; m->used = m->total / 4 - m->reserved; m->free = m->total - m->total / 4; return OK; }
int nvmlDeviceGetCudaComputeCapability(dev_h d, int *a, int *b) { IN(d); *a = phys(d)->ccmaj; *b = phys(d)->ccmin; return OK; }
int nvmlDeviceGetMemoryAffinity(dev_h d, unsigned n, unsigned long *s, unsigned scope) { (void)scope; IN(d); if (!n) return BADARG; memset(s, 0, n * sizeof *s); if (d->numa >= 0) s[0] = 1ul << d->numa; return OK; }
int nvmlDeviceGetTopologyCommonAncestor(dev_h a, dev_h b, unsigned *l) { IN(a); IN(b); *l = topo[phys(a)->index][phys(b)->index]; return OK; }
int nvmlDeviceGetNvLinkState(dev_h d, unsigned l, unsigned *a) { IN(d); if (l >= (unsigned)d->nvlinks) return d->nvlinks ? BADARG : NOTSUP; *a = linkup[d->index][l]; return OK; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(dev_h d, unsigned l, pci_t *p) { IN(d); if (l >= (unsigned)d->nvlinks || !linkup[d->index][l]) return NOTSUP; fillpci(linkbus[d->index][l], p); return OK; }
int nvmlDeviceGetBrand(dev_h d, unsigned *b) { IN(d); *b = 14; return OK; }
int nvmlDeviceGetPowerManagementDefaultLimit(dev_h d, unsigned *mw) { IN(d); if (MIGIS(d)) return NOTSUP; *mw = 700000; return OK; }
int nvmlDeviceGetPowerManagementLimitConstraints(dev_h d, unsigned *least, unsigned *most) { IN(d); if (MIGIS(d)) return NOTSUP; *least = 200000; *most = 700000; return OK; }
int nvmlDeviceGetPowerManagementLimit(dev_h d, unsigned *mw) { IN(d); if (MIGIS(d)) return NOTSUP; *mw = d->power ? d->power : 700000; return OK; }
int nvmlDeviceSetPowerManagementLimit(dev_h d, unsigned mw) { IN(d); if (MIGIS(d)) return NOTSUP; if (mw < 200000 || mw > 700000) return BADARG; d->power = mw; return OK; }
int nvmlDeviceGetPowerUsage(dev_h d, unsigned *mw) { IN(d); if (MIGIS(d)) return NOTSUP; *mw = 123450; return OK; }
int nvmlDeviceGetTemperature(dev_h d, unsigned sensor, unsigned *t) { IN(d); if (sensor) return BADARG; *t = 41 + d->index; return OK; }
int nvmlDeviceGetUtilizationRates(dev_h d, unsigned *u) { IN(d); if (phys(d)->mig) return NOTSUP; u[0] = 37; u[1] = 12; return OK; }
int nvmlDeviceGetClockInfo(dev_h d, unsigned type, unsigned *mhz) { IN(d); if (type > 3) return BADARG; if (MIGIS(d)) return NOTSUP; *mhz = type == 2 ? 2619 : 1980 - d->index; return OK; }
int nvmlDeviceGetEncoderUtilization(dev_h d, unsigned *u, unsigned *period) { IN(d); if (phys(d)->mig) return NOTSUP; *u = 5; *period = 167000; return OK; }
int nvmlDeviceGetDecoderUtilization(dev_h d, unsigned *u, unsigned *period) { IN(d); if (phys(d)->mig) return NOTSUP; *u = 7; *period = 167000; return OK; }
static int running(dev_h d, unsigned *n, proc_t *p) {
    unsigned found = 0, room = *n;
    for (int i = 0; i < nprocs; i++) if (procs[i].index == phys(d)->index) { if (p && found < room) p[found] = (proc_t){procs[i].pid, 1 << 20, ~0u, ~0u}; found++; }
    *n = found;
    return found && (!p || found > room) ? SMALL : OK; }
int nvmlDeviceGetComputeRunningProcesses_v2(dev_h d, unsigned *n, proc_t *p) { IN(d); return running(d, n, p); }

#ifndef OLD
int nvmlDeviceGetComputeRunningProcesses_v3(dev_h d, unsigned *n, proc_t *p) { IN(d); return running(d, n, p); }
int nvmlDeviceGetRemappedRows(dev_h d, unsigned *c, unsigned *u, unsigned *p, unsigned *f) { IN(d); *c = 0; *u = d->pending || d->failure; *p = d->pending; *f = d->failure; return OK; }
int nvmlDeviceGetNvLinkRemoteDeviceType(dev_h d, unsigned l, unsigned *t) { IN(d); if (l >= (unsigned)d->nvlinks || !linkup[d->index][l]) return NOTSUP; *t = linktype[d->index][l]; return OK; }
/* The bytes of NVLink are asked by link, or of all at once; this one knows only the sum. */
int nvmlDeviceGetFieldValues(dev_h d, int n, field_t *v) {
    IN(d);
    for (int i = 0; i < n; i++) {
        unsigned f = v[i].field;
        int there = f < MAXFIELD && !MIGIS(d) && fields[d->index][f].known && (f < 138 || f > 141 || v[i].scope == ~0u);
        v[i].type = 1; v[i].ret = OK;
        if (f == 230) v[i].value.ui = d->action;
        else if (f == 144 || f == 145) { v[i].type = 3; v[i].value.ull = f == 144 ? d->pending : d->failure; }
        else if (!there) v[i].ret = NOTSUP;
        else {
            v[i].type = fields[d->index][f].type;
            v[i].value.ull = v[i].type == 1 ? 0xabcdabcd00000000ull : 0; /* above a short value may be anything */
            if (v[i].type == 1) v[i].value.ui = fields[d->index][f].value; else v[i].value.ull = fields[d->index][f].value;
        }
    }
    return OK; }
int nvmlDeviceGetGridLicensableFeatures_v4(dev_h d, licenses_t *l) { IN(d); memset(l, 0, sizeof *l); if (d->license < 0) return OK; l->supported = 1; l->count = 1; l->features[0].code = 1; l->features[0].state = d->license; l->features[0].enabled = 1; return OK; }
int nvmlDeviceGetMigMode(dev_h d, unsigned *c, unsigned *p) { IN(d); *c = *p = phys(d)->mig; return OK; }
int nvmlDeviceGetMaxMigDeviceCount(dev_h d, unsigned *n) { IN(d); *n = d->mig ? 7 : 0; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(dev_h d, unsigned i, dev_h *m) { IN(d); for (int k = 0; k < MAXM; k++) if (mig[k].used && mig[k].parent == d->index && mig[k].index == (int)i) { *m = &mig[k]; return OK; } return NOTFOUND; }
int nvmlDeviceGetGpuInstanceId(dev_h d, unsigned *i) { IN(d); if (!MIGIS(d)) return NOTSUP; *i = d->gi; return OK; }
int nvmlDeviceGetComputeInstanceId(dev_h d, unsigned *i) { IN(d); if (!MIGIS(d)) return NOTSUP; *i = d->ci; return OK; }
int nvmlDeviceGetAttributes_v2(dev_h d, attr_t *a) { IN(d); if (!MIGIS(d)) return NOTSUP; memset(a, 0, sizeof *a); a->sm = d->sm; a->gislices = d->gislices; a->cislices = d->slices; a->memMB = d->memMiB;
    if (d->profile) { a->ce = profiles[d->profile - 1].ce; a->dec = profiles[d->profile - 1].dec; a->jpeg = profiles[d->profile - 1].jpeg; a->ofa = profiles[d->profile - 1].ofa; }
    return OK; }
int nvmlDeviceGetGpuInstanceProfileInfoV(dev_h d, unsigned i, profile_t *p) {
    IN(d);
    if (!d->mig || i >= (unsigned)nprofiles) return NOTSUP;
    p->id = profiles[i].id; p->p2p = 0; p->slices = profiles[i].slices; p->count = profiles[i].nplaces; p->sm = profiles[i].sm; p->ce = profiles[i].ce;
    p->dec = profiles[i].dec; p->enc = 0; p->jpeg = profiles[i].jpeg; p->ofa = profiles[i].ofa; p->memMB = profiles[i].mem;
    snprintf(p->name, 96, "MIG %s", profiles[i].name);
    return OK; }
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(dev_h d, unsigned id, place_t *places, unsigned *n) {
    IN(d);
    int p = profile_of(id);
    if (!d->mig || p < 0) return NOTSUP;
    for (int i = 0; places && i < profiles[p].nplaces; i++) places[i] = (place_t){profiles[p].places[i], profiles[p].size};
    *n = profiles[p].nplaces;
    return OK; }
int nvmlDeviceCreateGpuInstanceWithPlacement(dev_h d, unsigned id, const place_t *place, struct made **made_h) {
    IN(d);
    int p = profile_of(id), fits = 0, slot = -1, gi = 1, r = OK;
    if (!d->mig || p < 0) return NOTSUP;
    for (int i = 0; i < profiles[p].nplaces; i++) fits |= profiles[p].places[i] == (int)place->start && profiles[p].size == (int)place->size;
    if (!fits) return BADARG;
    pthread_mutex_lock(&mu);
    for (int k = MAXM / 2 - 1; k >= 0; k--) {
        if (!made[k].used) { slot = k; continue; }
        if (made[k].parent != d->index) continue;
        if (made[k].gi >= gi) gi = made[k].gi + 1;
        int other = profile_of(made[k].profile);
        if (other >= 0 && made[k].start < (int)(place->start + place->size) && (int)place->start < made[k].start + profiles[other].size) r = INSUFFICIENT;
    }
    if (r == OK) { made[slot] = (struct made){1, d->index, id, place->start, gi, -1}; save(); *made_h = &made[slot]; }
    pthread_mutex_unlock(&mu);
    return r; }
int nvmlDeviceGetGpuInstances(dev_h d, unsigned id, struct made **found, unsigned *n) {
    IN(d);
    *n = 0;
    for (int k = 0; k < MAXM / 2; k++) if (made[k].used && made[k].parent == d->index && made[k].profile == (int)id) found[(*n)++] = &made[k];
    return OK; }
int nvmlDeviceGetGpuInstanceById(dev_h d, unsigned gi, struct made **found) {
    IN(d);
    for (int k = 0; k < MAXM / 2; k++) if (made[k].used && made[k].parent == d->index && made[k].gi == (int)gi) { *found = &made[k]; return OK; }
    return NOTFOUND; }
int nvmlGpuInstanceGetInfo(struct made *m, gi_info_t *info) {
    IN(&gpu[m->parent]);
    if (!m->used) return NOTFOUND;
    *info = (gi_info_t){&gpu[m->parent], m->gi, m->profile, {m->start, profiles[profile_of(m->profile)].size}};
    return OK; }
int nvmlGpuInstanceGetComputeInstanceProfileInfoV(struct made *m, unsigned i, unsigned engine, ci_profile_t *p) {
    static const unsigned slices[] = {1, 2, 3, 4, 7, 8, 6};
    IN(&gpu[m->parent]);
    int own = profile_of(m->profile);
    if (i > 6 || engine || !m->used || (int)slices[i] > profiles[own].slices) return NOTSUP;
    p->id = i; p->slices = slices[i]; p->count = profiles[own].slices / slices[i]; p->sm = profiles[own].sm;
    snprintf(p->name, 96, "%s", profiles[own].name);
    return OK; }
int nvmlGpuInstanceCreateComputeInstance(struct made *m, unsigned id, struct made **made_h) {
    (void)id;
    IN(&gpu[m->parent]);
    if (!m->used) return NOTFOUND;
    if (m->ci >= 0) return INSUFFICIENT;
    pthread_mutex_lock(&mu);
    m->ci = 0; save(); *made_h = m;
    pthread_mutex_unlock(&mu);
    return OK; }
int nvmlGpuInstanceGetComputeInstances(struct made *m, unsigned id, struct made **found, unsigned *n) {
    static const int slices[] = {1, 2, 3, 4, 7, 8, 6};
    IN(&gpu[m->parent]);
    *n = 0;
    if (m->used && m->ci >= 0 && id < 7 && slices[id] == profiles[profile_of(m->profile)].slices) found[(*n)++] = m;
    return OK; }
int nvmlComputeInstanceGetInfo_v2(struct made *m, ci_info_t *info) {
    IN(&gpu[m->parent]);
    if (!m->used || m->ci < 0) return NOTFOUND;
    *info = (ci_info_t){&gpu[m->parent], m, m->ci, 0, {0, profiles[profile_of(m->profile)].slices}};
    return OK; }
int nvmlComputeInstanceDestroy(struct made *m) {
    IN(&gpu[m->parent]);
    for (int i = 0; i < nprocs; i++) if (procs[i].index == m->parent) return INUSE;
    pthread_mutex_lock(&mu);
    m->ci = -1; save();
    pthread_mutex_unlock(&mu);
    return OK; }
int nvmlGpuInstanceDestroy(struct made *m) {
    IN(&gpu[m->parent]);
    if (m->ci >= 0) return INUSE;
    pthread_mutex_lock(&mu);
    m->used = 0; save();
    pthread_mutex_unlock(&mu);
    return OK; }
#endif

/* What a set watches; quiet: nothing has happened there since its events were read to their end. */
struct set { int fd, quiet; char path[4096]; };
int nvmlEventSetCreate(struct set **s) { IN(0); *s = calloc(1, sizeof **s); (*s)->fd = -1; return OK; }
int nvmlEventSetFree(struct set *s) { if (s->fd >= 0) close(s->fd); free(s); return OK; }
int nvmlDeviceGetSupportedEventTypes(dev_h d, unsigned long long *t) { IN(d); *t = 0x11f; return OK; }
int nvmlDeviceRegisterEvents(dev_h d, unsigned long long t, struct set *s) { (void)s; IN(d); if (MIGIS(d)) return NOTSUP; d->mask |= t; return OK; }
/* Sleeps until something happens beside the state's file, as the real one sleeps in the driver: who waits costs nothing. */
static int watched(void) {
    char folder[4200];
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash) *slash = 0;
    if (fd >= 0 && inotify_add_watch(fd, slash ? folder : ".", IN_MODIFY | IN_CREATE | IN_MOVED_TO) < 0) { close(fd); fd = -1; }
    return fd;
}
static unsigned now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000u + t.tv_nsec / 1000000; }

int nvmlEventSetWait_v2(struct set *s, event_t *e, unsigned ms) {
    char file[4200], line[256], news[4096];
    IN(0);
    if (s->fd < 0 || strcmp(s->path, path)) {
        if (s->fd >= 0) close(s->fd);
        s->fd = watched();
        s->quiet = 0;
        snprintf(s->path, sizeof s->path, "%s", path);
    }
    for (unsigned began = now(), waited = 0;; waited = now() - began) {
        if (!s->quiet) {
            int refused = enter(__func__, 0);
            if (refused) return refused;
            snprintf(file, sizeof file, "%s.events", path);
            FILE *f = fopen(file, "r");
            if (f) {
                int any = 0, gi = -1, ci = -1, i = 0;
                unsigned long long code = 0;
                char kind[16];
                pthread_mutex_lock(&mu);
                fseek(f, events_at, SEEK_SET);
                while (!any && fgets(line, sizeof line, f) && strchr(line, '\n')) {
                    events_at = ftell(f);
                    if (sscanf(line, "%15s %d %llu %d %d", kind, &i, &code, &gi, &ci) < 2 || i < 0 || i >= MAXG) continue;
                    *e = (event_t){&gpu[i], !strcmp(kind, "xid") ? XID : MIG_CHANGE, code, gi, ci};
                    any = (gpu[i].mask & e->type) != 0;
                }
                pthread_mutex_unlock(&mu);
                fclose(f);
                if (any) return OK;
            }
            s->quiet = s->fd >= 0;
        }
        if (waited >= ms) return TIMEOUT;
        if (s->fd < 0) { usleep(10000); continue; } /* no instance of inotify is left */
        if (poll(&(struct pollfd){.fd = s->fd, .events = POLLIN}, 1, ms - waited) > 0) {
            while (read(s->fd, news, sizeof news) > 0) {}
            s->quiet = 0;
        }
    }
}
