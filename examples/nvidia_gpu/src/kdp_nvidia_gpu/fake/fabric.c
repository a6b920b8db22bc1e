/* The whole fake library: what nvml.c has, and the calls about the NVSwitch fabric. A file of its own, so that another
 * fabric can be written behind nvml.c. */
#include "nvml.c"

typedef struct { unsigned char cluster[16]; unsigned status, clique; unsigned char state; } fabric_t;
typedef struct { unsigned version; fabric_t info; unsigned mask; } fabric2_t;

static void fill(dev_h d, fabric_t *info) { memset(info, 0, sizeof *info); info->state = phys(d)->fabric[0]; info->status = phys(d)->fabric[1]; }
int nvmlDeviceGetGpuFabricInfo(dev_h d, fabric_t *info) { IN(d); fill(d, info); return OK; }
#ifndef OLD
int nvmlDeviceGetGpuFabricInfoV(dev_h d, fabric2_t *v) { IN(d); if (v->version != (2u << 24 | sizeof *v)) return 25; fill(d, &v->info); v->mask = phys(d)->fabric[2]; return OK; }
#endif
