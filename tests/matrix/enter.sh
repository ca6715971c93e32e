#!/bin/sh
# Run a command inside a root with a copy of the checkout: enter.sh ROOT CHECKOUT ro|rw COMMAND...
#
# It needs mount, pid, net, uts and ipc namespaces of its own. Mounts, processes, ports and the
# host's name then belong to them and end with them. With ro the root stays as it is and the command
# writes into memory; with rw it changes the root.
set -eu

root=$1
checkout=$2
access=$3
shift 3

in_memory() { mount -t tmpfs -o "mode=$1" none "$root$2"; }

mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
in_memory 1777 /dev/shm
in_memory 1777 /tmp
in_memory 1777 /var/tmp
in_memory 0755 /run
in_memory 0755 /home
in_memory 0700 /root
in_memory 0755 /src
if [ "$access" = ro ]; then
    # Tests make users.
    in_memory 0755 /mnt
    cp -a "$root/etc/." "$root/mnt/"
    mount --move "$root/mnt" "$root/etc"
    # Slurm asks for the host's own name, and there is no other machine to ask here.
    hostname csub-matrix
    echo csub-matrix >"$root/etc/hostname"
    printf '127.0.0.1 localhost\n127.0.1.1 csub-matrix\n' >"$root/etc/hosts"
    : >"$root/etc/resolv.conf"
    mount -o remount,bind,ro "$root"
fi

# What begins with a dot belongs to tools, and three Pythons must not share what they compiled.
(cd "$checkout" && tar -c --owner=0 --group=0 --exclude=__pycache__ -- *) | tar -x -C "$root/src"

# Where 127.0.0.1 is the only address, the C library finds none for a daemon to listen on.
chroot "$root" ip link set lo up
chroot "$root" ip address add 127.0.1.1/8 dev lo

exec chroot "$root" /usr/bin/env -i -C /src \
    PATH=/opt/csub/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/root USER=root LOGNAME=root LANG=C.UTF-8 TERM=dumb "$@"
