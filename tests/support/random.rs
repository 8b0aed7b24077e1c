//! Random numbers that are the same in every run.

/// SplitMix64. Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number of `range`.
    pub(crate) fn pick(&mut self, range: std::ops::Range<usize>) -> usize {
        range.start + (self.next() % range.len() as u64) as usize
    }

    /// Words that the demo model may know, so many of them.
    pub(crate) fn words(&mut self, count: usize) -> String {
        const WORDS: [&str; 16] = [
            "the", "capital", "of", "France", "is", "what", "and", "light", "seven", "a", "server",
            "you", "name", "plus", "Rome", "who",
        ];
        let words: Vec<&str> = (0..count).map(|_| WORDS[self.pick(0..WORDS.len())]).collect();
        words.join(" ")
    }
}
