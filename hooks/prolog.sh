#!/bin/sh
# Run by slurmd as root on a node, before a job starts there: Prolog= in slurm.conf.
#
# A job without csub's token at the end of its comment costs this file and nothing else: it starts
# no program. The comment is the user's own text; it is compared and passed on, never evaluated.

# Constants of this installation, one a line; `csub admin install-hooks` writes them.
prefix=/opt/slurm_colloc
run=/run/slurm_colloc
policy=/etc/slurm_colloc/node.toml
driver=

# Bytes, not characters.
LC_ALL=C
comment=${SLURM_JOB_COMMENT-}

# Slurm takes no more; matching costs the square of the length.
[ ${#comment} -le 1024 ] || exit 0

# The whole vocabulary, as in slurm_colloc/model/comment_token.py. The space in front makes one case of
# "behind the user's words" and "alone".
words=" $comment"
# Watts of two to four digits.
case $words in
    *' power='[123456789][0123456789]']' | \
    *' power='[123456789][0123456789][0123456789]']' | \
    *' power='[123456789][0123456789][0123456789][0123456789]']')
        words=${words%' power='*}]
        ;;
esac
case $words in
    *' [csub/1 mps]' | *' [csub/1 mps gpus=each]') ;;
    *' [csub/1 off]' | *' [csub/1 off gpus=each]') ;;
    *' [csub/1 mig='*']')
        layout=${words##*' [csub/1 mig='}
        layout=${layout%']'}
        layout=${layout%' gpus=each'}+
        # Seven of the longest words have 132 bytes.
        [ ${#layout} -le 160 ] || exit 0
        count=0
        # One to seven words, each as in layout_words.py: 3g, 1g.20gb, 1g.10gb+me, 3c.7g.
        while [ -n "$layout" ]; do
            count=$((count + 1))
            [ $count -le 7 ] || exit 0
            word=${layout%%+*}
            layout=${layout#*+}
            case $word in [123467]c.*) word=${word#?c.} ;; esac
            case $word in
                *-me) word=${word%-me} ;;
                *)
                    case $layout in
                        me.all+* | me+* | gfx+*) layout=${layout#*+} ;;
                    esac
                    ;;
            esac
            case $word in
                [12347]g | [12347]g.[123456789]gb) ;;
                [12347]g.[123456789][0123456789]gb) ;;
                [12347]g.[123456789][0123456789][0123456789]gb) ;;
                *) exit 0 ;;
            esac
        done
        ;;
    *) exit 0 ;;
esac

job=${SLURM_JOB_ID-}
case $job in '' | *[!0123456789]*) exit 0 ;; esac
[ ${#job} -le 10 ] || exit 0
# Without the program the job does without it, and starts its own MPS daemon.
[ -x "$prefix/bin/python" ] || exit 0

exec </dev/null 3<&- 4<&- 5<&- 6<&- 7<&- 8<&- 9<&-
# The tree that is there now, whatever a link leads to later: an upgrade exchanges it.
cd -P "$prefix" && prefix=$PWD
cd /
umask 077
/usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C \
    "SLURM_JOB_ID=$job" \
    "SLURM_JOB_COMMENT=$comment" \
    ${SLURM_JOB_UID+"SLURM_JOB_UID=$SLURM_JOB_UID"} \
    ${SLURM_JOB_GID+"SLURM_JOB_GID=$SLURM_JOB_GID"} \
    ${SLURM_JOB_USER+"SLURM_JOB_USER=$SLURM_JOB_USER"} \
    ${SLURM_JOB_PARTITION+"SLURM_JOB_PARTITION=$SLURM_JOB_PARTITION"} \
    ${SLURM_JOB_ACCOUNT+"SLURM_JOB_ACCOUNT=$SLURM_JOB_ACCOUNT"} \
    ${SLURM_JOB_GPUS+"SLURM_JOB_GPUS=$SLURM_JOB_GPUS"} \
    ${SLURM_JOB_CPUS_PER_NODE+"SLURM_JOB_CPUS_PER_NODE=$SLURM_JOB_CPUS_PER_NODE"} \
    ${SLURM_JOB_SLUID+"SLURM_JOB_SLUID=$SLURM_JOB_SLUID"} \
    ${CUDA_VISIBLE_DEVICES+"CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"} \
    ${SLURMD_NODENAME+"SLURMD_NODENAME=$SLURMD_NODENAME"} \
    ${SLURM_CONF+"SLURM_CONF=$SLURM_CONF"} \
    ${SLURM_CLUSTER_NAME+"SLURM_CLUSTER_NAME=$SLURM_CLUSTER_NAME"} \
    ${SLURM_JOB_RESTART_COUNT+"SLURM_JOB_RESTART_COUNT=$SLURM_JOB_RESTART_COUNT"} \
    ${driver:+"SLURM_COLLOC_DRIVER=$driver"} \
    "$prefix/bin/python" -I -B -m slurm_colloc.host.lifecycle prolog \
    --run-directory "$run" --policy "$policy"

# A status of 1 would also be that of a broken installation, which must not drain the node.
ended=$?
[ $ended -ne 10 ] || exit 1
# One that was killed while it divided a GPU: no job starts on a part of one.
if [ $ended -gt 128 ] && [ -r "$run/jobs/$job.json" ]; then
    IFS= read -r state <"$run/jobs/$job.json"
    case $state in
        *'"phase": "ready"'*) ;;
        *'"mig": [{'*) exit 1 ;;
    esac
fi
exit 0
