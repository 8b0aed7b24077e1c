//! The server's side: it ends with the conversation that has started it.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::{BOUND, REPORT, SOCKET};

/// The binding of a server to its parent. If the parent has been killed, the folder is removed on drop.
#[derive(Debug)]
pub(crate) struct Bound {
    parent: Option<Pid>,
    folder: PathBuf,
}

impl Bound {
    /// Takes the hidden command out of the command line, and binds this process to its parent. `None` without that command.
    ///
    /// # Errors
    /// The parent has ended already.
    pub(crate) fn take(args: &mut Vec<OsString>) -> Option<Result<Self>> {
        if args.len() < 4 || args[1] != BOUND {
            return None;
        }
        let taken: Vec<OsString> = args.drain(1..4).skip(1).collect();
        let parent = taken[0].to_str().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
        let bound = Self { parent, folder: PathBuf::from(&taken[1]) };
        let is_bound = set_parent_process_death_signal(Some(Signal::TERM));
        // The parent may have ended before this request to the kernel. Then no signal would ever come.
        let is_orphan = is_bound.is_err() || bound.is_orphan();
        Some(if is_orphan { Err(anyhow!("the conversation has ended")) } else { Ok(bound) })
    }

    fn is_orphan(&self) -> bool {
        getppid() != self.parent
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // A parent that lives reads the report, and removes the folder itself.
        if self.is_orphan() {
            let _ = fs::remove_file(self.folder.join(REPORT));
            let _ = fs::remove_file(self.folder.join(SOCKET));
            let _ = fs::remove_dir(&self.folder);
        }
    }
}
