"""System calls: their numbers on each architecture, the lists of the profiles, and the seccomp filter.

Only the standard library: this runs in the process of a plugin, before the plugin's code.
"""

from __future__ import annotations

import functools
import platform
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence

Number = Mapping[str, int]
Condition = tuple[int, Sequence[int]]
"""The index of an argument, and the values (64 bits) of which it must have one."""

AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Values of ``seccomp_data.arch`` by ``platform.machine()``."""
NEWEST = 451
"""Calls above this number were not known when the lists were written: they get ENOSYS."""

_EPERM, _ENOSYS = 1, 38
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_X32 = 0x40000000

# Name, number on x86_64, number on aarch64; "-" where the architecture does not have the call.
_TABLE = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69
pwritev 296 70, preadv2 327 286, pwritev2 328 287, close 3 57, close_range 436 436, lseek 8 62
fstat 5 80, stat 4 -, lstat 6 -, newfstatat 262 79, statx 332 291, statfs 137 43, fstatfs 138 44
access 21 -, faccessat 269 48, faccessat2 439 439, readlink 89 -, readlinkat 267 78, open 2 -
openat 257 56, getdents64 217 61, getdents 78 -, getcwd 79 17, chdir 80 49, fchdir 81 50
umask 95 166, dup 32 23, dup2 33 -, dup3 292 24, pipe 22 -, pipe2 293 59, fcntl 72 25, ioctl 16 29
flock 73 32, fsync 74 82, fdatasync 75 83, ftruncate 77 46, fadvise64 221 223, poll 7 -
ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -, epoll_create1 291 20
epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441, eventfd2 290 19
timerfd_create 283 85, timerfd_settime 286 86, timerfd_gettime 287 87, signalfd4 289 74
socketpair 53 199, getsockopt 55 209, setsockopt 54 208, getsockname 51 204, getpeername 52 205
shutdown 48 210, sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, brk 12 214
mmap 9 222, munmap 11 215, mremap 25 216, mprotect 10 226, madvise 28 233, mincore 27 232
membarrier 324 283, futex 202 98, rseq 334 293, set_robust_list 273 99, get_robust_list 274 100
set_tid_address 218 96, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139
rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132
restart_syscall 219 128, pause 34 -, exit 60 93, exit_group 231 94, wait4 61 260, waitid 247 95
kill 62 129, tkill 200 130, tgkill 234 131, getpid 39 172, gettid 186 178, getppid 110 173
getpgrp 111 -, getpgid 121 155, getsid 124 156, getuid 102 174, geteuid 107 175, getgid 104 176
getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158, capget 125 90
prctl 157 167, prlimit64 302 261, getrlimit 97 163, getrusage 98 165, times 100 153, sysinfo 99 179
uname 63 160, getcpu 309 168, sched_yield 24 124, sched_getaffinity 204 123, getpriority 140 141
clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, nanosleep 35 101
gettimeofday 96 169, time 201 -, alarm 37 -, getitimer 36 102, setitimer 38 103, getrandom 318 278
socket 41 198, clone 56 220, clone3 435 435, unshare 272 97, setns 308 268, mount 165 40
umount2 166 39, pivot_root 155 41, open_tree 428 428, move_mount 429 429, fsopen 430 430
fsconfig 431 431, fsmount 432 432, fspick 433 433, mount_setattr 442 442, chroot 161 51
landlock_create_ruleset 444 444, landlock_add_rule 445 445, landlock_restrict_self 446 446
seccomp 317 277, capset 126 91, pidfd_open 434 434, pidfd_getfd 438 438, ptrace 101 117
process_vm_readv 310 270, process_vm_writev 311 271, process_madvise 440 440, kcmp 312 272
keyctl 250 219, add_key 248 217, request_key 249 218, bpf 321 280, perf_event_open 298 241
userfaultfd 323 282, io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427
open_by_handle_at 304 265, name_to_handle_at 303 264, kexec_load 246 104, kexec_file_load 320 294
init_module 175 105, finit_module 313 273, delete_module 176 106, reboot 169 142, swapon 167 224
swapoff 168 225, acct 163 89, settimeofday 164 170, clock_settime 227 112, adjtimex 159 171
clock_adjtime 305 266, quotactl 179 60, quotactl_fd 443 443, syslog 103 116, iopl 172 -
ioperm 173 -, modify_ldt 154 -, personality 135 92, vhangup 153 58, lookup_dcookie 212 18
fanotify_init 300 262, nfsservctl 180 42, mbind 237 235, set_mempolicy 238 237
migrate_pages 256 238, move_pages 279 239, set_mempolicy_home_node 450 450, sethostname 170 161
setdomainname 171 162, memfd_create 319 279, memfd_secret 447 447, shmget 29 194, mq_open 240 180
uselib 134 -, ustat 136 -, sysfs 139 -, fork 57 -, execve 59 221, setuid 105 146
pidfd_send_signal 424 424
"""

_OWN_PROCESS = """
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 close close_range lseek
fstat stat lstat newfstatat statx statfs fstatfs access faccessat faccessat2 readlink readlinkat
open openat getdents64 getdents getcwd chdir fchdir umask dup dup2 dup3 pipe pipe2 flock fsync
fdatasync ftruncate fadvise64 poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl
epoll_wait epoll_pwait epoll_pwait2 eventfd2 timerfd_create timerfd_settime timerfd_gettime
signalfd4 getsockopt setsockopt getsockname getpeername shutdown recvfrom sendmsg recvmsg brk mmap
munmap mremap mprotect madvise mincore membarrier futex rseq set_robust_list get_robust_list
set_tid_address rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend
sigaltstack restart_syscall pause exit exit_group wait4 waitid getpid gettid getppid getpgrp getpgid
getsid getuid geteuid getgid getegid getresuid getresgid getgroups capget getrlimit getrusage times
sysinfo uname getcpu sched_yield sched_getaffinity getpriority clock_gettime clock_getres
clock_nanosleep nanosleep gettimeofday time alarm getitimer setitimer getrandom
"""
"""Calls that concern only the process and the descriptors that it has."""

_NEVER = """
unshare setns mount umount2 pivot_root open_tree move_mount fsopen fsconfig fsmount fspick
mount_setattr chroot pidfd_getfd ptrace process_vm_readv process_vm_writev process_madvise kcmp
keyctl add_key request_key bpf perf_event_open userfaultfd io_uring_setup io_uring_enter
io_uring_register open_by_handle_at name_to_handle_at kexec_load kexec_file_load init_module
finit_module delete_module reboot swapon swapoff acct settimeofday clock_settime adjtimex
clock_adjtime quotactl quotactl_fd syslog iopl ioperm modify_ldt personality vhangup lookup_dcookie
fanotify_init nfsservctl mbind set_mempolicy migrate_pages move_pages set_mempolicy_home_node
sethostname setdomainname memfd_secret uselib ustat sysfs
"""
"""Calls that no foreign program needs: they reach other processes or the whole machine."""

_AF_UNIX, _SOCK_STREAM, _SOCK_FLAGS = 1, 1, (0, 0o4000, 0o2000000, 0o2004000)
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032, 1034)
# No F_SETOWN and F_SETSIG: the kernel would send any signal to any process of the same user.
_IOCTL = (0x541B, 0x5421, 0x5451, 0x5450, 0x5401)  # FIONREAD, FIONBIO, FIOCLEX, FIONCLEX, TCGETS (isatty)
_PRCTL = (3, 15, 16, 23, 0x53564D41)  # get dumpable, set and get the name, read a capability, name memory
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_THREAD = 0x3D0F00
"""The flags with which the C library starts a thread."""
_NEW_NAMESPACES = 0x7E020000
"""The flags of ``clone`` for new namespaces."""


@functools.cache
def numbers(machine: str = "") -> Number:
    """Return the numbers of the calls on an architecture; this machine's by default.

    Raises OSError for an architecture without a table.
    """
    machine = machine or platform.machine()
    if machine not in AUDIT_ARCHITECTURES:
        raise OSError(
            f"there is no table of system calls for {machine}; confined plugins run on x86_64 and aarch64"
        )
    column = 1 if machine == "x86_64" else 2
    rows = (row.split() for line in _TABLE.splitlines() for row in line.split(",") if row.strip())
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


@functools.cache
def plugin_filter(pid: int, machine: str = "", *, threads: bool = False) -> bytes:
    """Return the filter of the profile ``plugin``: an allow list, without processes, sockets and exec."""
    own = (pid,)
    rules: dict[str, Sequence[Condition]] = dict.fromkeys(_OWN_PROCESS.split(), ())
    rules |= {
        "kill": ((0, own),),
        "tgkill": ((0, own),),
        "tkill": ((0, own),),
        "fcntl": ((1, _FCNTL),),
        "ioctl": ((1, _IOCTL),),
        "prctl": ((0, _PRCTL),),
        "prlimit64": ((0, (0,)),),
        # Only streams: a datagram socket could send to any address, also to abstract ones.
        "socketpair": ((0, (_AF_UNIX,)), (1, tuple(_SOCK_STREAM | flags for flags in _SOCK_FLAGS))),
        "sendto": ((4, (0,)),),
    }
    if threads:
        rules["clone"] = ((0, (_THREAD,)),)
    return _program(machine, lambda number: _allowed(number, rules), _ERRNO | _EPERM)


def program_filter(families: Iterable[int]) -> bytes:
    """Return the filter of the profile ``program``: everything but what no program needs.

    ``families`` are the address families of sockets that it may create.
    """

    def body(number: Number) -> list[list[tuple[int, int, int, int]]]:
        refused = [
            [_equal(number[name], 1), _return(_ERRNO | _EPERM)] for name in _NEVER.split() if name in number
        ]
        clone = [
            _load(_low(0)),
            (_JUMP_SET, 0, 1, _NEW_NAMESPACES),
            _return(_ERRNO | _EPERM),
            _return(_ALLOW),
        ]
        ioctl = [_load(_low(1))]
        for command in (_TIOCSTI, _TIOCLINUX, _TIOCSETD):
            ioctl += [_equal(command, 1), _return(_ERRNO | _EPERM)]
        ioctl.append(_return(_ALLOW))
        sockets = [_load(_low(0))]
        for family in families:
            sockets += [_equal(family, 1), _return(_ALLOW)]
        sockets.append(_return(_ERRNO | _EPERM))
        return [
            *refused,
            *(_only(number[n], b) for n, b in (("clone", clone), ("ioctl", ioctl), ("socket", sockets))),
        ]

    return _program("", body, _ALLOW)


Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, constant."""


def _program(machine: str, body: Callable[[Number], list[list[Instruction]]], otherwise: int) -> bytes:
    """Return a filter: it kills at another architecture, and ends with ``otherwise``."""
    machine = machine or platform.machine()
    number = numbers(machine)
    code = [
        _load(_ARCH_AT),
        _equal(AUDIT_ARCHITECTURES[machine], 0, 1),
        _return(_KILL_PROCESS),
        _load(_NUMBER_AT),
    ]
    if machine == "x86_64":
        # The x32 ABI has its own numbers, which no list here covers.
        code += [(_JUMP_ABOVE, 0, 1, _X32 - 1), _return(_KILL_PROCESS)]
    # The flags of clone3 are in memory, where a filter cannot look; the C library then calls clone.
    code += [_equal(number["clone3"], 1), _return(_ERRNO | _ENOSYS)]
    code += [(_JUMP_ABOVE, 0, 1, NEWEST), _return(_ERRNO | _ENOSYS)]
    for block in body(number):
        code += block
    code.append(_return(otherwise))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def _allowed(number: Number, rules: Mapping[str, Sequence[Condition]]) -> list[list[Instruction]]:
    """Return a block for each allowed call; those without conditions come first: they are frequent."""
    ordered = sorted(rules.items(), key=lambda rule: len(rule[1]))
    return [_only(number[name], _checked(conditions)) for name, conditions in ordered if name in number]


def _checked(conditions: Sequence[Condition]) -> list[Instruction]:
    """Return code that allows the call if all conditions hold, and refuses it otherwise."""
    code: list[Instruction] = []
    for index, values in conditions:
        # The upper half of each value here is zero; the kernel may still see garbage there for an int.
        code.append(_load(_low(index)))
        for at, value in enumerate(values):
            code.append((_JUMP_EQUAL, len(values) - at, 0, value))
        code.append(_return(_ERRNO | _EPERM))
        if index == _POINTER:
            code += [_load(_low(index) + 4), (_JUMP_EQUAL, 1, 0, 0), _return(_ERRNO | _EPERM)]
    return [*code, _return(_ALLOW)]


_POINTER = 4
"""The index of the one argument that is a pointer, the address of ``sendto``: both its halves count."""


def _only(number: int, block: Sequence[Instruction]) -> list[Instruction]:
    """Return code that runs a block for one call, and skips it for others."""
    return [_equal(number, len(block)), *block]


def _low(index: int) -> int:
    """Return the place of the lower half of an argument, on little-endian machines."""
    return _ARGUMENTS_AT + 8 * index


def _load(at: int) -> Instruction:
    return (_LOAD, 0, 0, at)


def _equal(value: int, otherwise: int, then: int = 0) -> Instruction:
    """Return a jump over ``otherwise`` instructions unless the loaded value is this one."""
    return (_JUMP_EQUAL, then, otherwise, value)


def _return(action: int) -> Instruction:
    return (_RETURN, 0, 0, action)
