//! Forked children of a thread: each verifies what it inherited, writes memory of its own, verifies
//! that, reports and ends, while the thread goes on.

use super::model::Model;
use super::task::{PATIENCE, Pages};
use anyhow::{Context, Result, bail};
use hugeswap_sys::spawn::{self, Change};
use serde::{Deserialize, Serialize};
use std::io::{PipeReader, Read, Write};
use std::time::{Duration, Instant};

/// Pages that a child verifies, before and after its own work.
const LOOKS: usize = 150;
/// Operations in between.
const OPERATIONS: usize = 60;
/// A child ends after so long, whatever it has done.
const TIME: Duration = Duration::from_secs(4);

/// The report of a child: less than a pipe takes at once.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub pages: Pages,
    /// The first page with wrong bytes.
    pub wrong: Option<String>,
    /// Why it could not go on.
    pub failure: Option<String>,
}

/// A child that has not ended yet.
pub struct Child {
    pid: i32,
    report: PipeReader,
    since: Instant,
}

/// The state of a child.
pub enum State {
    Running,
    /// It did not end in time, and was killed.
    Hung,
    Ended(Report),
}

impl Child {
    /// Forks a child of this thread.
    pub fn fork(model: &mut Model) -> Result<Child> {
        let (report, mut to) = std::io::pipe()?;
        let pid = spawn::in_child(|| {
            let report = work(model);
            let line = serde_json::to_vec(&report).unwrap_or_default();
            u8::from(to.write_all(&line).is_err())
        })?;
        let since = Instant::now();
        Ok(Child { pid, report, since })
    }

    /// Whether it has ended, and its report.
    pub fn state(&mut self) -> Result<State> {
        let Some(waited) = spawn::wait(self.pid, false)? else {
            if self.since.elapsed() <= PATIENCE {
                return Ok(State::Running);
            }
            spawn::send(self.pid, libc::SIGKILL)?;
            spawn::wait(self.pid, true)?;
            return Ok(State::Hung);
        };
        if waited.change != Change::Exited(0) {
            bail!("a forked child ended: {:?}", waited.change);
        }
        // One read returns all of it, because a pipe takes so much at once.
        let mut line = vec![0; 4096];
        let n = self.report.read(&mut line)?;
        let report = serde_json::from_slice(&line[..n]);
        report.context("the report of a child").map(State::Ended)
    }
}

/// In the child: all it does.
fn work(model: &mut Model) -> Report {
    model.begin_as_child();
    let failure = verify_and_act(model).err().map(|e| format!("{e:#}"));
    let (pages, wrong) = (model.take_pages(), model.take_wrong());
    Report {
        pages,
        wrong,
        failure,
    }
}

fn verify_and_act(model: &mut Model) -> Result<()> {
    let start = Instant::now();
    let times = |n: usize| (0..n).take_while(|_| start.elapsed() <= TIME);
    times(LOOKS).try_for_each(|_| model.verify_any())?;
    times(OPERATIONS).try_for_each(|_| model.act())?;
    times(LOOKS).try_for_each(|_| model.verify_any())
}
