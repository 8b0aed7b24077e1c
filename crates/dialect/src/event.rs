//! Events of a parsed answer.

/// An addition to an answer. All texts in order are the model's output without the format's marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputEvent {
    /// Content.
    Content(String),
    /// Reasoning.
    Reasoning(String),
    /// Start of a tool call; calls are numbered from 0.
    CallStart {
        /// Number of the call.
        index: usize,
        /// Name of the function.
        name: String,
    },
    /// More arguments of the last call: a piece of JSON.
    CallArguments {
        /// Number of the call.
        index: usize,
        /// Text to append to the arguments.
        fragment: String,
    },
    /// The arguments of the last call are complete. Missing if the text ended too early.
    CallEnd {
        /// Number of the call.
        index: usize,
    },
}

impl OutputEvent {
    /// Appends the event to others, and merges it with the last one if both are of the same kind.
    pub fn add_to(self, events: &mut Vec<Self>) {
        match (events.last_mut(), self) {
            (Some(Self::Content(before)), Self::Content(text))
            | (Some(Self::Reasoning(before)), Self::Reasoning(text))
            | (
                Some(Self::CallArguments { fragment: before, .. }),
                Self::CallArguments { fragment: text, .. },
            ) => before.push_str(&text),
            // `CallArguments` are merged without a look at `index`: a start stands between the arguments of two
            // calls.
            (_, event) => events.push(event),
        }
    }
}

/// A list of events, in which neighbours of one kind are merged.
#[derive(Debug, Default)]
pub(crate) struct Events(Vec<OutputEvent>);

impl Events {
    pub(crate) fn content(&mut self, text: &str) {
        if !text.is_empty() {
            OutputEvent::Content(text.to_owned()).add_to(&mut self.0);
        }
    }

    pub(crate) fn reasoning(&mut self, text: &str) {
        if !text.is_empty() {
            OutputEvent::Reasoning(text.to_owned()).add_to(&mut self.0);
        }
    }

    pub(crate) fn call_start(&mut self, index: usize, name: String) {
        self.0.push(OutputEvent::CallStart { index, name });
    }

    pub(crate) fn call_arguments(&mut self, index: usize, text: &str) {
        if !text.is_empty() {
            OutputEvent::CallArguments { index, fragment: text.to_owned() }.add_to(&mut self.0);
        }
    }

    pub(crate) fn call_end(&mut self, index: usize) {
        self.0.push(OutputEvent::CallEnd { index });
    }

    pub(crate) fn into_vec(self) -> Vec<OutputEvent> {
        self.0
    }
}
