/* A SPANK plug-in with three options, as a site may have it. No header of Slurm's is needed. */
#include <stddef.h>

/* The part of slurm/spank.h that this uses (22.05 to 26.05). */
typedef struct spank_handle *spank_t;
struct spank_option {
    char *name;
    char *arginfo;
    char *usage;
    int has_arg;
    int val;
    int (*cb)(int val, const char *optarg, int remote);
};
extern int spank_option_register(spank_t spank, struct spank_option *option);

const char plugin_name[] = "site_image";
const char plugin_type[] = "spank";
const unsigned int plugin_version = VERSION_NUMBER;
const unsigned int spank_plugin_version = 1;

static int take(int val, const char *optarg, int remote)
{
    (void)val, (void)optarg, (void)remote;
    return 0;
}

static struct spank_option options[] = {
    {"site-image", "IMAGE", "[site] the image", 1, 1, take},
    {"site-writable", NULL, "[site] a flag", 0, 2, take},
    {"site-mounts", "[LIST]", "[site] mounts", 2, 3, take},
};

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
    size_t at;

    (void)argc, (void)argv;
    for (at = 0; at < sizeof(options) / sizeof(options[0]); at++)
        spank_option_register(spank, &options[at]);
    return 0;
}
