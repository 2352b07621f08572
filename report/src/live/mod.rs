//! A run as it stands, on a terminal: `trainer watch`.
//!
//! In: the directory of a run. Out: a page that is drawn anew every second, or once as text.
//! Invariant: files are read and none is written, locked or waited for: a run does not notice who watches it.

mod state;
mod view;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::Rect;

use self::state::{Live, Stage};

/// Between two looks at the files.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two looks at whether the program is to end.
const LOOK: Duration = Duration::from_millis(100);

/// What text has columns and rows of, where there is no terminal.
const TEXT: Rect = Rect { x: 0, y: 0, width: 120, height: 40 };

/// The page as text.
///
/// # Errors
/// A [`Refusal`](crate::Refusal) if the directory is none of a run; when its metrics cannot be read.
pub fn snapshot(directory: &Path) -> Result<String> {
    page(directory, TEXT)
}

fn page(directory: &Path, area: Rect) -> Result<String> {
    let mut buffer = Buffer::empty(area);
    view::render(&Live::read(directory)?, area, &mut buffer);
    let row = |y| (0..area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    Ok((0..area.height).map(row).collect::<Vec<_>>().join("\n").trim_end().to_owned())
}

/// Waits until the run has ended, or the program `is_to_end`; whether the run has finished.
///
/// # Errors
/// As [`snapshot`].
pub fn wait(directory: &Path, is_to_end: impl Fn() -> bool) -> Result<bool> {
    let (mut stage, mut looked) = (Live::read(directory)?.stage, Instant::now());
    while !stage.has_ended() && !is_to_end() {
        thread::sleep(LOOK);
        if looked.elapsed() >= PAUSE {
            (stage, looked) = (Live::read(directory)?.stage, Instant::now());
        }
    }
    Ok(Live::read(directory)?.stage == Stage::Finished)
}

/// Shows the page on the terminal until `q` is pressed, the program `is_to_end`, or, if it is to be watched `until_end`, the run has ended;
/// whether it has finished.
///
/// # Errors
/// As [`snapshot`], and when the terminal cannot be read or written.
pub fn watch(directory: &Path, until_end: bool, is_to_end: impl Fn() -> bool) -> Result<bool> {
    // Before the screen is taken, so that a refusal is seen.
    let mut live = Live::read(directory)?;
    let mut terminal = ratatui::try_init()?;
    let result = loop {
        if let Err(error) = terminal.draw(|frame| view::render(&live, frame.area(), frame.buffer_mut())) {
            break Err(error.into());
        }
        if until_end && live.stage.has_ended() {
            break Ok(());
        }
        match is_ended_by_key(&is_to_end) {
            Ok(false) => {}
            result => break result.map(|_| ()),
        }
        match Live::read(directory) {
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
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(true),
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
