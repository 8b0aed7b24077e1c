//! Tables of aligned columns.

/// Lines of cells, each column as wide as its widest cell. The first two columns are aligned left, the others, which are numbers,
/// right.
pub(crate) fn table(lines: &[Vec<String>]) -> String {
    aligned(lines, 2)
}

/// Like [`table`], but all columns are aligned left.
pub(crate) fn table_of_words(lines: &[Vec<String>]) -> String {
    aligned(lines, usize::MAX)
}

/// Aligns the first `left` columns left.
fn aligned(lines: &[Vec<String>], left: usize) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        // Cells may have characters of several bytes, such as names of models.
        lines.iter().filter_map(|line| Some(line.get(column)?.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column < left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let line = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let lines = [line(["a", "on", "1"]), line(["bcd", "x", "100"])];
        assert_eq!(table(&lines), "a    on    1\nbcd  x   100\n");
        assert_eq!(table_of_words(&lines), "a    on  1\nbcd  x   100\n");
    }
}
