//! A run as it stands, on a terminal: `trainer watch`.
//!
//! In: the directory of a run. Out: a page that is drawn anew every second, or once as text.
//! Invariant: files are read and none is written or waited for, and the lock of a run is tried for a moment only: a run does not notice
//! who watches it.

mod state;
mod view;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::Rect;

use self::state::{Live, SILENCE, Stage, Watched};

/// Between two looks at the files.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two looks at whether the program is to end.
const LOOK: Duration = Duration::from_millis(100);

/// What text has columns and rows of, where there is no terminal.
const TEXT: Rect = Rect {
    x: 0,
    y: 0,
    width: 120,
    height: 40,
};

/// A run adds a line to its log, or does a step, in this time; steps may take longer.
pub const CADENCE: Duration = Duration::from_secs(12);

/// Returns the page as text. A run that seems silent is watched for `cadence` or two of its steps, if that is longer: its clock
/// may differ from that of this machine. A `cadence` of zero looks once.
///
/// # Errors
/// A [`Refusal`](crate::Refusal) if the directory is none of a run; when its metrics cannot be read.
pub fn snapshot(directory: &Path, cadence: Duration) -> Result<String> {
    Ok(page(&seen_within(directory, cadence)?, TEXT))
}

/// Looks until the run is not silent, for `cadence` or two of its steps.
fn seen_within(directory: &Path, cadence: Duration) -> Result<Live> {
    let mut watched = Watched::new();
    loop {
        let live = Live::read(directory, &mut watched)?;
        let of_steps = live
            .progress
            .as_ref()
            .and_then(records::RunProgress::time_per_step)
            .unwrap_or_default();
        let patience = cadence.max(2 * of_steps.min(SILENCE));
        if cadence.is_zero()
            || !matches!(live.stage, Stage::Silent(_))
            || watched.duration() >= patience
        {
            return Ok(live);
        }
        thread::sleep(LOOK);
    }
}

fn page(live: &Live, area: Rect) -> String {
    let mut buffer = Buffer::empty(area);
    view::render(live, area, &mut buffer);
    let row = |y| {
        (0..area.width)
            .map(|x| buffer[(x, y)].symbol())
            .collect::<String>()
            .trim_end()
            .to_owned()
    };
    (0..area.height)
        .map(row)
        .collect::<Vec<_>>()
        .join("\n")
        .trim_end()
        .to_owned()
}

/// Waits until the run has ended, or the program `is_to_end`; whether the run has finished.
///
/// # Errors
/// As [`snapshot`].
pub fn wait(directory: &Path, is_to_end: impl Fn() -> bool) -> Result<bool> {
    let mut watched = Watched::new();
    let (mut stage, mut looked) = (Live::read(directory, &mut watched)?.stage, Instant::now());
    while !stage.has_ended() && !is_to_end() {
        thread::sleep(LOOK);
        if looked.elapsed() >= PAUSE {
            (stage, looked) = (Live::read(directory, &mut watched)?.stage, Instant::now());
        }
    }
    Ok(Live::read(directory, &mut watched)?.stage == Stage::Finished)
}

/// Shows the page on the terminal until `q` is pressed, the program `is_to_end`, or, if it is to be watched `until_end`, the run has ended;
/// whether it has finished.
///
/// # Errors
/// As [`snapshot`], and when the terminal cannot be read or written.
pub fn watch(directory: &Path, until_end: bool, is_to_end: impl Fn() -> bool) -> Result<bool> {
    // Before the screen is taken, so that a refusal is seen.
    let mut watched = Watched::new();
    let mut live = Live::read(directory, &mut watched)?;
    let mut terminal = ratatui::try_init()?;
    let result = loop {
        if let Err(error) =
            terminal.draw(|frame| view::render(&live, frame.area(), frame.buffer_mut()))
        {
            break Err(error.into());
        }
        if until_end && live.stage.has_ended() {
            break Ok(());
        }
        match is_ended_by_key(&is_to_end) {
            Ok(false) => {}
            result => break result.map(|_| ()),
        }
        match Live::read(directory, &mut watched) {
            Ok(read) => live = read,
            Err(error) => break Err(error),
        }
    };
    let restored = ratatui::try_restore();
    result?;
    restored?;
    Ok(live.stage == Stage::Finished)
}

/// Listens until the files are to be looked at again; whether somebody wants no more.
fn is_ended_by_key(is_to_end: impl Fn() -> bool) -> Result<bool> {
    let end = Instant::now() + PAUSE;
    while Instant::now() < end {
        if is_to_end() {
            return Ok(true);
        }
        if !event::poll(LOOK)? {
            continue;
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

#[cfg(test)]
mod tests;
