//! The current state of a run on a terminal: `trainer watch`.
//!
//! In: the directory of a run. Out: a page, drawn every second or printed once as text.
//! Invariant: files are only read, and the lock of the run is tried for a moment only, so the run
//! does not notice.

mod state;
mod view;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::Rect;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use self::state::{Live, SILENCE, Stage, Watched};

/// Time between two reads of the files.
const PAUSE: Duration = Duration::from_secs(1);
/// Time between two looks at whether the program should end.
const LOOK: Duration = Duration::from_millis(100);
/// Size of a page without a terminal.
const TEXT: Rect = Rect {
    x: 0,
    y: 0,
    width: 120,
    height: 40,
};

/// Time in which a run adds a line to its log or runs a step; steps may take longer.
pub const CADENCE: Duration = Duration::from_secs(12);

/// Returns the page as text. Watches a silent run for `cadence`, or for two of its steps if they
/// take longer, because its clock may differ from this machine's. A `cadence` of zero reads once.
///
/// # Errors
/// A [`Refusal`](crate::Refusal) without a directory; when the metrics cannot be read.
pub fn snapshot(directory: &Path, cadence: Duration) -> Result<String> {
    Ok(page(&seen_within(directory, cadence)?, TEXT))
}

fn seen_within(directory: &Path, cadence: Duration) -> Result<Live> {
    let mut watched = Watched::default();
    loop {
        let live = Live::read(directory, &mut watched)?;
        let step = live
            .progress
            .as_ref()
            .and_then(records::RunProgress::time_per_step);
        let patience = cadence.max(2 * step.unwrap_or_default().min(SILENCE));
        let is_silent = matches!(live.stage, Stage::Silent(_));
        if cadence.is_zero() || !is_silent || watched.duration() >= patience {
            return Ok(live);
        }
        thread::sleep(LOOK);
    }
}

fn page(live: &Live, area: Rect) -> String {
    let mut buffer = Buffer::empty(area);
    view::render(live, area, &mut buffer);
    let row = |y| {
        let row: String = (0..area.width).map(|x| buffer[(x, y)].symbol()).collect();
        row.trim_end().to_owned() + "\n"
    };
    let page: String = (0..area.height).map(row).collect();
    page.trim_end().to_owned()
}

/// Waits until the run has ended or `is_to_end` returns true. Returns true if the run has finished.
///
/// # Errors
/// Same as [`snapshot`].
pub fn wait(directory: &Path, is_to_end: impl Fn() -> bool) -> Result<bool> {
    let mut watched = Watched::default();
    loop {
        let stage = Live::read(directory, &mut watched)?.stage;
        if stage.has_ended() {
            return Ok(stage == Stage::Finished);
        }
        let next = Instant::now() + PAUSE;
        while Instant::now() < next {
            if is_to_end() {
                return Ok(Live::read(directory, &mut watched)?.stage == Stage::Finished);
            }
            thread::sleep(LOOK);
        }
    }
}

/// Shows the page on the terminal until `q` is pressed, `is_to_end` returns true, or, with
/// `until_end`, the run has ended. Returns true if the run has finished.
///
/// # Errors
/// Same as [`snapshot`], and when the terminal cannot be read or written.
pub fn watch(directory: &Path, until_end: bool, is_to_end: impl Fn() -> bool) -> Result<bool> {
    // Read before the terminal switches screens, so that an error stays visible.
    let mut watched = Watched::default();
    let mut live = Live::read(directory, &mut watched)?;
    let mut terminal = ratatui::try_init()?;
    let mut show = || -> Result<bool> {
        loop {
            terminal.draw(|frame| {
                view::render(&live, frame.area(), frame.buffer_mut());
                view::key(frame.area(), frame.buffer_mut());
            })?;
            if until_end && live.stage.has_ended() || is_ended_by_key(&is_to_end)? {
                return Ok(live.stage == Stage::Finished);
            }
            live = Live::read(directory, &mut watched)?;
        }
    };
    let has_finished = show();
    ratatui::try_restore()?;
    has_finished
}

/// Waits until the next read of the files. Returns true if the user or the program wants to end.
fn is_ended_by_key(is_to_end: impl Fn() -> bool) -> Result<bool> {
    let end = Instant::now() + PAUSE;
    while Instant::now() < end {
        if is_to_end() {
            return Ok(true);
        }
        match input()? {
            Input::None => continue,
            Input::HungUp => return Ok(true),
            Input::Event => {}
        }
        match event::read()? {
            Event::Key(key) => match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(true),
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                    return Ok(true);
                }
                _ => {}
            },
            Event::Resize(..) => return Ok(false),
            _ => {}
        }
    }
    Ok(false)
}

enum Input {
    None,
    Event,
    /// The terminal is gone.
    HungUp,
}

/// Waits a moment for a key or a new size of the terminal.
///
/// Asks the system first: crossterm does not return from a wait for a terminal that is gone.
fn input() -> Result<Input> {
    let stdin = io::stdin();
    let mut wait = LOOK;
    if stdin.is_terminal() {
        let mut descriptors = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut descriptors, Some(&Timespec::try_from(LOOK)?)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        if descriptors[0].revents().intersects(gone) {
            return Ok(Input::HungUp);
        }
        wait = Duration::ZERO;
    }
    Ok(match event::poll(wait)? {
        true => Input::Event,
        false => Input::None,
    })
}

#[cfg(test)]
mod tests;
