//! What an answer's text turns out to be.

/// What is added to an answer. In order, and together, the texts are what the model wrote, without the format's marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputEvent {
    /// Text for the reader.
    Content(String),
    /// Text that the model wrote to itself.
    Reasoning(String),
    /// A call begins; calls are numbered from 0.
    CallStart {
        /// Its number.
        index: usize,
        /// The function's name.
        name: String,
    },
    /// More of the arguments of the last call: a piece of JSON.
    CallArguments {
        /// The call's number.
        index: usize,
        /// What is added to the arguments.
        fragment: String,
    },
    /// The arguments of the last call are complete. Missing where the text ended too early.
    CallEnd {
        /// The call's number.
        index: usize,
    },
}

impl OutputEvent {
    /// Adds the event to others; what goes on with the last of them becomes a part of it.
    pub fn add_to(self, events: &mut Vec<Self>) {
        match (events.last_mut(), self) {
            (Some(Self::Content(before)), Self::Content(text))
            | (Some(Self::Reasoning(before)), Self::Reasoning(text))
            | (
                Some(Self::CallArguments { fragment: before, .. }),
                Self::CallArguments { fragment: text, .. },
            ) => before.push_str(&text),
            (_, event) => events.push(event),
        }
    }
}

/// Events, of which neighbours of one kind become one.
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
