//! What the user has chosen to see, and what each key does.

use super::map::Map;
use super::watched::{Pools, Process};
use crate::text;
use hugeswap_policy::UNIT_BYTES;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::cmp::Reverse;
use std::time::{Duration, Instant};

/// How long a message stays.
const TIME_TO_READ: Duration = Duration::from_secs(4);

/// All keys, for the help.
pub const KEYS: [(&str, &str); 13] = [
    ("q, Ctrl-C", "quit"),
    ("?, h", "this help, and back"),
    ("Tab, Shift-Tab", "the next pool, the one before"),
    ("up, down, k, j", "another process; scroll the map"),
    ("Enter, m", "map of the process's memory, and back"),
    ("z, Z", "map: closer, and farther away"),
    (
        "s, S",
        "sort processes by the next column, by the one before",
    ),
    (
        "-, +",
        "a smaller, or larger budget (a sixteenth of its largest)",
    ),
    (
        "p",
        "page out what the process has used least lately (a sixteenth of the budget)",
    ),
    ("space", "stop looking, and go on"),
    ("<, >", "look more often, or less often"),
    ("Esc", "back to the processes"),
    ("Ctrl-L", "draw the screen anew"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Stay,
    /// The whole screen is to be drawn.
    Redraw,
    Quit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Processes,
    Map,
    Help,
}

/// By what processes are sorted, in the order of columns; the largest first, but for their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Pid,
    InMemory,
    Swapped,
    Comes,
    Goes,
    Major,
    InFaults,
}

impl Column {
    pub const ALL: [Column; 7] = [
        Column::Pid,
        Column::InMemory,
        Column::Swapped,
        Column::Comes,
        Column::Goes,
        Column::Major,
        Column::InFaults,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Column::Pid => "PID",
            Column::InMemory => "IN USE",
            Column::Swapped => "SWAPPED",
            Column::Comes => "IN/s",
            Column::Goes => "OUT/s",
            Column::Major => "MAJOR/s",
            Column::InFaults => "WAIT",
        }
    }

    fn turned(self, by: usize) -> Column {
        let at = Column::ALL.iter().position(|&c| c == self).unwrap_or(0);
        Column::ALL[(at + by) % Column::ALL.len()]
    }

    /// Sorts processes, those that are equal by their numbers.
    pub fn sort(self, all: &mut [Process]) {
        all.sort_by_key(|p| {
            let value = match self {
                Column::Pid => 0,
                Column::InMemory => p.in_memory,
                Column::Swapped => p.swapped,
                Column::Comes => p.comes,
                Column::Goes => p.goes,
                Column::Major => (p.major * 1e3) as u64,
                Column::InFaults => (p.in_faults * 1e6) as u64,
            };
            (Reverse(value), p.pid)
        });
    }
}

/// What is on the screen.
pub struct Screen {
    pub view: View,
    pub column: Column,
    /// The processes of the pool that is shown, sorted.
    pub rows: Vec<Process>,
    /// The process that is marked.
    pub marked: Option<i32>,
    pub is_paused: bool,
    pub interval: Duration,
    /// What the last key did, and since when it is told.
    message: Option<(String, Instant)>,
    pub map: Map,
}

impl Screen {
    pub fn new(interval: Duration) -> Screen {
        Screen {
            view: View::Processes,
            column: Column::InMemory,
            rows: Vec::new(),
            marked: None,
            is_paused: false,
            interval,
            message: None,
            map: Map::default(),
        }
    }

    /// Takes over what was found. A process that is marked stays so as long as it is there.
    pub fn follow(&mut self, pools: &Pools) {
        self.rows = pools.shown().map_or_else(Vec::new, |p| p.processes.clone());
        self.column.sort(&mut self.rows);
        if self.place().is_none() {
            self.marked = self.rows.first().map(|p| p.pid);
        }
    }

    /// Index of the marked process in the rows.
    pub fn place(&self) -> Option<usize> {
        let marked = self.marked?;
        self.rows.iter().position(|p| p.pid == marked)
    }

    pub fn look_at_map(&mut self, pools: &Pools) {
        if let (Some(shown), Some(pid)) = (pools.shown(), self.marked) {
            self.map.look(&shown.pool, pid);
        }
    }

    fn say(&mut self, what: String) {
        self.message = Some((what, Instant::now()));
    }

    /// What the last key did, for as long as it takes to be read.
    pub fn message(&self) -> Option<&str> {
        let (what, since) = self.message.as_ref()?;
        (since.elapsed() < TIME_TO_READ).then_some(what)
    }

    /// A key was pressed.
    pub fn key(&mut self, key: KeyEvent, pools: &mut Pools) -> Next {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Next::Quit,
                KeyCode::Char('l') => Next::Redraw,
                _ => Next::Stay,
            };
        }
        if key.modifiers.contains(KeyModifiers::ALT) {
            // (Esc and a key that came at the same time look the same.)
            self.view = View::Processes;
        }
        match key.code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('?' | 'h') => self.toggle(View::Help),
            KeyCode::Enter | KeyCode::Char('m') => self.toggle(View::Map),
            KeyCode::Esc => self.view = View::Processes,
            KeyCode::Tab | KeyCode::BackTab => {
                pools.turn(key.code == KeyCode::Tab);
                self.marked = None;
                self.map = Map::default();
            }
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') => self.column = self.column.turned(1),
            KeyCode::Char('S') => self.column = self.column.turned(Column::ALL.len() - 1),
            KeyCode::Char('z') => self.map.zoom(true),
            KeyCode::Char('Z') => self.map.zoom(false),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::PageUp => self.step(-10),
            KeyCode::PageDown => self.step(10),
            KeyCode::Char('-') => self.change_budget(pools, false),
            KeyCode::Char('+' | '=') => self.change_budget(pools, true),
            KeyCode::Char('p') => self.page_out(pools),
            KeyCode::Char('<') => self.change_interval(false),
            KeyCode::Char('>') => self.change_interval(true),
            _ => {}
        }
        Next::Stay
    }

    fn toggle(&mut self, view: View) {
        self.view = match self.view == view {
            true => View::Processes,
            false => view,
        };
    }

    fn step(&mut self, by: isize) {
        if self.view == View::Map {
            return self.map.scroll(by);
        }
        let Some(last) = self.rows.len().checked_sub(1) else {
            return;
        };
        let at = self.place().unwrap_or(0);
        let to = at.saturating_add_signed(by).min(last);
        self.marked = self.rows.get(to).map(|p| p.pid);
    }

    fn change_budget(&mut self, pools: &Pools, larger: bool) {
        let Some(shown) = pools.shown() else {
            return;
        };
        if shown.pool.followed_limit().is_some() {
            return self.say("the budget follows a limit: it cannot be changed here".into());
        }
        let most = shown.pool.ceiling_frames() * UNIT_BYTES;
        let step = (most / 16).max(UNIT_BYTES);
        let was = shown.pool.frames() * UNIT_BYTES;
        let wanted = match larger {
            true => was + step,
            false => was.saturating_sub(step),
        };
        let now = shown.pool.set_budget(wanted);
        self.say(match (now == was, larger) {
            (true, true) => format!(
                "the budget cannot be larger than the {} that it was given",
                text::bytes(most)
            ),
            (true, false) => format!("{} is the smallest budget", text::bytes(now)),
            _ => format!("budget {} (was {})", text::bytes(now), text::bytes(was)),
        });
    }

    fn page_out(&mut self, pools: &Pools) {
        let (Some(shown), Some(pid)) = (pools.shown(), self.marked) else {
            return;
        };
        let wanted = shown.pool.frames() * UNIT_BYTES / 16;
        let asked = shown
            .pool
            .ask_to_page_out(Some(pid), wanted.max(UNIT_BYTES));
        self.say(match asked {
            0 => format!("process {pid} has nothing that can leave"),
            _ => format!("process {pid} was asked to page out {}", text::bytes(asked)),
        });
    }

    fn change_interval(&mut self, longer: bool) {
        const LEAST: Duration = Duration::from_millis(100);
        const MOST: Duration = Duration::from_secs(60);
        let to = match longer {
            true => self.interval * 2,
            false => self.interval / 2,
        };
        self.interval = to.clamp(LEAST, MOST);
        self.say(format!("a look each {} s", self.interval.as_secs_f64()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, in_memory: u64, comes: u64) -> Process {
        Process {
            pid,
            in_memory,
            comes,
            ..Process::default()
        }
    }

    #[test]
    fn processes_are_sorted_by_each_column() {
        let mut all = [process(3, 5, 1), process(1, 5, 9), process(2, 7, 4)];
        let mut by = |column: Column| {
            column.sort(&mut all);
            all.iter().map(|p| p.pid).collect::<Vec<_>>()
        };
        assert_eq!(by(Column::Pid), [1, 2, 3]);
        assert_eq!(by(Column::InMemory), [2, 1, 3]);
        assert_eq!(by(Column::Comes), [1, 2, 3]);
        assert_eq!(by(Column::Goes), [1, 2, 3]);
    }

    #[test]
    fn all_columns_are_come_to_in_both_directions() {
        let (mut forwards, mut back) = (Column::Pid, Column::Pid);
        for n in 1..=Column::ALL.len() {
            (forwards, back) = (forwards.turned(1), back.turned(Column::ALL.len() - 1));
            assert_eq!(forwards == Column::Pid, n == Column::ALL.len());
            assert_eq!(back == Column::Pid, n == Column::ALL.len());
        }
    }

    #[test]
    fn the_marked_process_moves_within_the_rows() {
        let mut screen = Screen::new(Duration::from_secs(1));
        screen.step(1);
        assert_eq!(screen.marked, None);
        screen.rows = (1..=4).map(|pid| process(pid, 0, 0)).collect();
        screen.marked = Some(1);
        for (by, pid) in [(1, 2), (10, 4), (1, 4), (-2, 2), (-10, 1)] {
            screen.step(by);
            assert_eq!(screen.marked, Some(pid), "{by}");
        }
    }
}
