//! Matrices and column vectors, whatever brackets are around them. Left out: determinants, and matrices in formulas, which are words.

use super::parse::Answer;

/// Environments of matrices: those with bars are determinants.
const KINDS: [&str; 6] = ["pmatrix", "bmatrix", "Bmatrix", "matrix", "smallmatrix", "array"];

/// The rows of the matrix that `text` is, perhaps after a name and `=`.
pub fn read(text: &str) -> Option<Answer> {
    let (before, rest) = text.split_once("\\begin{")?;
    let (kind, rest) = rest.split_once('}')?;
    let (body, after) = rest.split_once("\\end{")?;
    let after = after.strip_prefix(kind)?.strip_prefix('}')?;
    let bare = |text: &str| {
        text.replace("\\left", "").replace("\\right", "").replace(['(', ')', '[', ']', '$', ' '], "")
    };
    let name = bare(before);
    let is_named =
        name.is_empty() || name.strip_suffix('=').is_some_and(|name| name.chars().all(char::is_alphabetic));
    if !is_named || !bare(after).is_empty() || !KINDS.contains(&kind) {
        return None;
    }
    // `\begin{array}{cc}` says how its columns are set.
    let body = match (kind, super::spelling::group(body)) {
        ("array", Some((_, body))) => body,
        _ => body,
    };
    let mut rows: Vec<&str> = body.split("\\\\").collect();
    // A row may end with the space that follows it: `\\[4pt]`.
    for row in rows.iter_mut().skip(1) {
        let spaced = row.trim_start().strip_prefix('[').and_then(|rest| rest.split_once(']'));
        *row = spaced.filter(|(space, _)| space.ends_with(char::is_alphabetic)).map_or(*row, |(_, row)| row);
    }
    if rows.last().is_some_and(|row| row.trim().is_empty()) {
        rows.pop();
    }
    let cells = |row: &str| row.split('&').map(Answer::read).collect::<Option<Vec<_>>>();
    let rows = rows.into_iter().map(cells).collect::<Option<Vec<_>>>()?;
    (!rows.is_empty()).then_some(Answer::Matrix(rows))
}
