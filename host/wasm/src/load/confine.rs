//! Takes the access to files, sockets and other processes from the helper process, which does not need them to vet and compile.
//!
//! The helper parses files without a grant, with the account of the host. The component comes on standard input and the reply goes to
//! standard output, so the helper opens nothing. Do not call [`confine`] in a process that has other work to do later.

use thiserror::Error;

/// The reason why the process is not confined.
#[derive(Debug, Error)]
pub enum ConfineError {
    /// This kernel or machine does not support filters of system calls.
    #[error("this system has no filter of system calls")]
    Unsupported,
    /// The filter could not be set.
    #[error("failed to set the filter of system calls")]
    Filter {
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn confine() -> Result<(), ConfineError> {
    Err(ConfineError::Unsupported)
}

#[cfg(target_os = "linux")]
pub(crate) use linux::confine;

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeMap;
    use std::io;

    use seccompiler::{
        BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule, TargetArch, apply_filter_all_threads,
    };

    use super::ConfineError;

    /// The system calls that memory, threads, locks and open pipes need.
    const ALLOWED: [libc::c_long; 28] = [
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_close,
        libc::SYS_brk,
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_mprotect,
        libc::SYS_madvise,
        libc::SYS_futex,
        libc::SYS_membarrier,
        libc::SYS_rseq,
        libc::SYS_set_robust_list,
        libc::SYS_sched_getaffinity,
        libc::SYS_sched_yield,
        libc::SYS_sigaltstack,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_restart_syscall,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_getrandom,
        libc::SYS_clock_gettime,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];

    /// Blocks every way to unopened files, to sockets and to other programs, for this process and all its threads.
    ///
    /// # Errors
    ///
    /// If this system has no such filter, or the filter cannot be set.
    pub(crate) fn confine() -> Result<(), ConfineError> {
        let program = program(std::process::id()).map_err(|error| match error {
            BackendError::InvalidTargetArch(_) => ConfineError::Unsupported,
            error => ConfineError::Filter { source: Box::new(error) },
        })?;
        // This call also sets `no_new_privs`.
        apply_filter_all_threads(&program).map_err(|error| match &error {
            seccompiler::Error::Prctl(cause) | seccompiler::Error::Seccomp(cause) if is_missing(cause) => {
                ConfineError::Unsupported
            }
            _ => ConfineError::Filter { source: Box::new(error) },
        })
    }

    /// Returns true for the errors of a kernel without filters.
    fn is_missing(error: &io::Error) -> bool {
        [libc::EINVAL, libc::ENOSYS].map(Some).contains(&error.raw_os_error())
    }

    /// Returns the filter of process `own`. Any other system call fails as missing, and libraries continue without it.
    fn program(own: u32) -> Result<BpfProgram, BackendError> {
        let only = |argument, length, operator, value| {
            Ok(vec![SeccompRule::new(vec![SeccompCondition::new(argument, length, operator, value)?])?])
        };
        let (thread, name) = (libc::CLONE_THREAD as u64, libc::PR_SET_NAME as u64);
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.map(|call| (call, Vec::new())).into();
        // A clone may create a thread but no process. A filter cannot see the flags of `clone3`, so `clone3` counts as missing.
        let is_thread = SeccompCmpOp::MaskedEq(thread);
        rules.insert(libc::SYS_clone, only(0, SeccompCmpArgLen::Qword, is_thread, thread)?);
        rules.insert(libc::SYS_prctl, only(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, name)?);
        // The process may only abort itself.
        rules.insert(libc::SYS_tgkill, only(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, own.into())?);
        let missing = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
        let machine = TargetArch::try_from(std::env::consts::ARCH)?;
        SeccompFilter::new(rules, missing, SeccompAction::Allow, machine)?.try_into()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs::File;
    use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
    use std::process::Command;

    use ring::rand::{SecureRandom as _, SystemRandom};
    use rustix::process::{Pid, getppid, test_kill_process};

    use super::*;

    /// The variable that tells the child whether to confine itself, and on which port its parent listens.
    const CHILD: &str = "OARLOCK_TEST_CONFINED";
    /// The operations that the helper does not need, and the operations that it needs.
    const REFUSED: [&str; 5] = ["open", "connect", "bind", "run", "signal"];
    const WORKS: [&str; 3] = ["thread", "memory", "random"];

    /// A child of the test program tries everything that a hostile file may want of the helper, confined and unconfined.
    #[test]
    fn a_confined_process_opens_no_file_makes_no_socket_and_starts_no_program() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let said = |confined: bool| {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "load::confine::tests::in_the_child", "--ignored", "--nocapture"]);
            let ended = child.env(CHILD, format!("{confined} {port}")).output().unwrap();
            (String::from_utf8_lossy(&ended.stdout).into_owned(), ended)
        };
        let (free, ended) = said(false);
        for what in REFUSED.iter().chain(&WORKS) {
            assert!(free.contains(&format!("{what}: done")), "{what} tells nothing of the filter: {ended:?}");
        }
        let (confined, ended) = said(true);
        for what in REFUSED {
            assert!(confined.contains(&format!("{what}: refused")), "{what}: {ended:?}");
        }
        for what in WORKS {
            assert!(confined.contains(&format!("{what}: done")), "{what}: {ended:?}");
        }
        assert!(ended.status.success(), "{ended:?}");
    }

    #[test]
    #[ignore = "its process can do nothing after it: the test above runs it"]
    fn in_the_child() {
        let asked = std::env::var(CHILD).unwrap();
        let (confined, port) = asked.split_once(' ').unwrap();
        let port: u16 = port.parse().unwrap();
        let parent = getppid().unwrap_or(Pid::INIT);
        if confined == "true" {
            confine().unwrap();
        }
        let tell = |what: &str, done: bool| println!("{what}: {}", if done { "done" } else { "refused" });
        tell("open", File::open("/etc/passwd").is_ok());
        tell("connect", TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        tell("bind", UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).is_ok());
        tell("run", Command::new("/bin/true").status().is_ok());
        tell("signal", test_kill_process(parent).is_ok());
        tell("thread", std::thread::spawn(|| 1).join().is_ok());
        tell("memory", vec![1_u8; 64 << 20].iter().all(|byte| *byte == 1));
        tell("random", SystemRandom::new().fill(&mut [0; 32]).is_ok());
        std::process::exit(0);
    }
}
