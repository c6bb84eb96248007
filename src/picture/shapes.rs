//! Characters that are drawn as rectangles: blocks, shades, box lines and Braille dots. They then join seamlessly in
//! every font.

/// The size of a cell in units of the drawing.
pub const CELL: (f32, f32) = (10.0, 20.0);

/// A rectangle in a cell, and its opacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Distance from the left edge of the cell.
    pub x: f32,
    /// Distance from the top edge.
    pub y: f32,
    /// Width.
    pub width: f32,
    /// Height.
    pub height: f32,
    /// From 0, invisible, to 1.
    pub opacity: f32,
}

fn part(x: f32, y: f32, width: f32, height: f32) -> Part {
    Part { x, y, width, height, opacity: 1.0 }
}

/// Returns the rectangles of `symbol`; `None` if it is not drawn as rectangles.
pub(super) fn of(symbol: &str) -> Option<Vec<Part>> {
    let mut chars = symbol.chars();
    let (c, None) = (chars.next()?, chars.next()) else { return None };
    block(c).or_else(|| lines(c)).or_else(|| braille(c)).or_else(|| (c == '⋮').then(dots))
}

fn block(c: char) -> Option<Vec<Part>> {
    let (w, h) = CELL;
    let code = u32::from(c);
    let eighths = |count: u32| count as f32 / 8.0;
    Some(match code {
        0x2580 => vec![part(0.0, 0.0, w, h / 2.0)],
        0x2581..=0x2588 => {
            let height = h * eighths(code - 0x2580);
            vec![part(0.0, h - height, w, height)]
        }
        0x2589..=0x258f => vec![part(0.0, 0.0, w * eighths(0x2590 - code), h)],
        0x2590 => vec![part(w / 2.0, 0.0, w / 2.0, h)],
        0x2591..=0x2593 => vec![Part { opacity: (code - 0x2590) as f32 / 4.0, ..part(0.0, 0.0, w, h) }],
        0x2594 => vec![part(0.0, 0.0, w, h / 8.0)],
        0x2595 => vec![part(w * 7.0 / 8.0, 0.0, w / 8.0, h)],
        0x2596..=0x259f => {
            // The bits, highest first: upper left, upper right, lower left, lower right.
            const QUARTERS: [u8; 10] =
                [0b0010, 0b0001, 0b1000, 0b1011, 0b1001, 0b1110, 0b1101, 0b0100, 0b0110, 0b0111];
            let quarters = QUARTERS[(code - 0x2596) as usize];
            let corner =
                |at: u8| part(f32::from(at % 2) * w / 2.0, f32::from(at / 2) * h / 2.0, w / 2.0, h / 2.0);
            (0..4).filter(|at| quarters & (8 >> at) != 0).map(corner).collect()
        }
        0x2800..=0x28ff => {
            // Braille dots: three down the left, three down the right, and the two lowest.
            const DOTS: [(u8, u8); 8] = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)];
            let dot = |(x, y): (u8, u8)| {
                part(f32::from(x) * w / 2.0 + 1.0, f32::from(y) * h / 4.0 + 1.0, w / 2.0 - 2.0, h / 4.0 - 2.0)
            };
            let bits = code - 0x2800;
            (0..8).filter(|bit| bits & (1 << bit) != 0).map(|bit| dot(DOTS[bit as usize])).collect()
        }
        _ => return None,
    })
}

/// Returns the widths of the lines from the middle to the left, the right, up and down.
fn arms(c: char) -> Option<[u8; 4]> {
    Some(match c {
        '─' => [1, 1, 0, 0],
        '│' => [0, 0, 1, 1],
        '┌' | '╭' => [0, 1, 0, 1],
        '┐' | '╮' => [1, 0, 0, 1],
        '└' | '╰' => [0, 1, 1, 0],
        '┘' | '╯' => [1, 0, 1, 0],
        '├' => [0, 1, 1, 1],
        '┤' => [1, 0, 1, 1],
        '┬' => [1, 1, 0, 1],
        '┴' => [1, 1, 1, 0],
        '┼' => [1, 1, 1, 1],
        '━' => [3, 3, 0, 0],
        '┃' => [0, 0, 3, 3],
        '┏' => [0, 3, 0, 3],
        '┓' => [3, 0, 0, 3],
        '┗' => [0, 3, 3, 0],
        '┛' => [3, 0, 3, 0],
        '┣' => [0, 3, 3, 3],
        '┫' => [3, 0, 3, 3],
        '┳' => [3, 3, 0, 3],
        '┻' => [3, 3, 3, 0],
        '╋' => [3, 3, 3, 3],
        _ => return None,
    })
}

fn lines(c: char) -> Option<Vec<Part>> {
    let (w, h) = CELL;
    let [left, right, up, down] = arms(c)?.map(f32::from);
    let middle = left.max(right).max(up).max(down);
    let (x, y) = ((w - middle) / 2.0, (h - middle) / 2.0);
    let mut parts = Vec::new();
    if left > 0.0 || right > 0.0 {
        let from = if left > 0.0 { 0.0 } else { x };
        let to = if right > 0.0 { w } else { x + middle };
        parts.push(part(from, y, to - from, middle));
    }
    if up > 0.0 || down > 0.0 {
        let from = if up > 0.0 { 0.0 } else { y };
        let to = if down > 0.0 { h } else { y + middle };
        parts.push(part(x, from, middle, to - from));
    }
    Some(parts)
}

/// Returns the dots of a Braille character, in two columns of four. Plots are made of these.
fn braille(c: char) -> Option<Vec<Part>> {
    let bits = u32::from(c).checked_sub(0x2800).filter(|&bits| bits < 0x100)?;
    // Column and row of each bit.
    const DOTS: [(f32, f32); 8] =
        [(0.0, 0.0), (0.0, 1.0), (0.0, 2.0), (1.0, 0.0), (1.0, 1.0), (1.0, 2.0), (0.0, 3.0), (1.0, 3.0)];
    let set = DOTS.iter().enumerate().filter(|(at, _)| bits & (1 << at) != 0);
    Some(set.map(|(_, &(column, row))| part(1.5 + 5.0 * column, 1.5 + 5.0 * row, 2.0, 2.0)).collect())
}

fn dots() -> Vec<Part> {
    [4.0, 9.0, 14.0].map(|y| part(4.0, y, 2.0, 2.0)).to_vec()
}
