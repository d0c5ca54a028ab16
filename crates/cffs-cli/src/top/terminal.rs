//! The terminal: raw while `cffs top` runs, and as it was afterwards.

use super::screen::Line;
use crossterm::style::{Attribute, Print, SetAttribute};
use crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute, queue, terminal};
use std::io::{self, Write};

/// Its other screen, without a cursor. Dropping this brings the first one back.
pub struct Screen;

impl Screen {
    /// Takes the terminal.
    pub fn open() -> io::Result<Screen> {
        terminal::enable_raw_mode()?;
        let screen = Screen;
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    /// Columns and lines.
    pub fn room(&self) -> (usize, usize) {
        let (width, height) = terminal::size().unwrap_or((80, 24));
        (usize::from(width.max(20)), usize::from(height.max(6)))
    }

    /// Draws a picture.
    pub fn draw(&self, lines: &[Line]) -> io::Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        for (n, (line, strong)) in lines.iter().enumerate() {
            queue!(out, cursor::MoveTo(0, n as u16))?;
            if *strong {
                queue!(out, SetAttribute(Attribute::Reverse))?;
            }
            queue!(out, Print(line), Clear(ClearType::UntilNewLine), SetAttribute(Attribute::Reset))?;
        }
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = execute!(io::stdout(), cursor::Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}
