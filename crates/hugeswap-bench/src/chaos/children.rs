//! Forked children of a thread of `chaos`: each verifies what it inherited, writes memory of its own, verifies that, tells and ends, while the
//! thread goes on.

use super::model::{Counts, Model};
use super::work::PATIENCE;
use anyhow::{Context, Result, bail};
use hugeswap_sys::spawn::{self, Change};
use serde::{Deserialize, Serialize};
use std::io::{PipeReader, Read, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Pages that a child looks at, before and after its own work.
const LOOKS: usize = 150;
/// What it does in between.
const OPERATIONS: usize = 60;
/// It ends after so long, whatever it has done.
const TIME: Duration = Duration::from_secs(4);

/// What a child tells: less than a pipe takes at once.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Told {
    verified: u64,
    wrong: u64,
    lost: u64,
    refused: u64,
    /// The first page with wrong bytes, or why it stopped.
    said: Option<String>,
    failed: bool,
}

/// A child that has not ended yet.
pub struct Child {
    pid: i32,
    tells: PipeReader,
    since: Instant,
}

impl Model<'_> {
    /// Forks a child, unless there is one.
    pub fn fork(&mut self) -> Result<()> {
        if self.child.is_some() {
            return Ok(());
        }
        let (tells, mut to) = std::io::pipe()?;
        let pid = spawn::in_child(|| {
            let told = self.be_a_child();
            let line = serde_json::to_vec(&told).unwrap_or_default();
            u8::from(to.write_all(&line).is_err())
        })?;
        self.child = Some(Child {
            pid,
            tells,
            since: Instant::now(),
        });
        Ok(())
    }

    /// In the child: all it does.
    fn be_a_child(&mut self) -> Told {
        let count =
            |c: &Counts| [&c.verified, &c.wrong, &c.lost, &c.refused].map(|n| n.load(Relaxed));
        let before = count(self.counts);
        self.begin_as_child();
        let failed = self.child_work().err();
        let now = count(self.counts);
        let [verified, wrong, lost, refused] = std::array::from_fn(|i| now[i] - before[i]);
        Told {
            verified,
            wrong,
            lost,
            refused,
            failed: failed.is_some(),
            said: self.take_said().or(failed.map(|e| format!("{e:#}"))),
        }
    }

    fn child_work(&mut self) -> Result<()> {
        let start = Instant::now();
        let looks = |me: &mut Self| {
            for _ in 0..LOOKS {
                if start.elapsed() > TIME {
                    break;
                }
                let page = me.any_page();
                me.verify(page)?;
            }
            anyhow::Ok(())
        };
        looks(self)?;
        for _ in 0..OPERATIONS {
            if start.elapsed() > TIME {
                break;
            }
            self.act()?;
        }
        looks(self)
    }

    /// Looks whether the child has ended, and what it tells; `wait`: until it has.
    pub fn look_at_child(&mut self, wait: bool) -> Result<()> {
        while let Some(child) = &mut self.child {
            let Some(waited) = spawn::wait(child.pid, false)? else {
                if child.since.elapsed() > PATIENCE {
                    spawn::send(child.pid, libc::SIGKILL)?;
                    spawn::wait(child.pid, true)?;
                    self.counts.hangs.fetch_add(1, Relaxed);
                    self.child = None;
                } else if wait {
                    self.alive.fetch_add(1, Relaxed);
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                }
                break;
            };
            if waited.change != Change::Exited(0) {
                bail!("a forked child ended: {:?}", waited.change);
            }
            // All of it is there: a pipe takes so much at once.
            let mut line = vec![0; 4096];
            let n = child.tells.read(&mut line)?;
            let told: Told = serde_json::from_slice(&line[..n]).context("what a child told")?;
            self.child = None;
            let c = self.counts;
            for (to, n) in [
                (&c.verified, told.verified),
                (&c.wrong, told.wrong),
                (&c.lost, told.lost),
                (&c.refused, told.refused),
                (&c.children, 1),
            ] {
                to.fetch_add(n, Relaxed);
            }
            match told.said {
                Some(said) if told.failed => bail!("a forked child: {said}"),
                Some(said) => eprintln!("a forked child: {said}"),
                None => {}
            }
        }
        Ok(())
    }
}
