//! The content of a chat message: a text, or parts that are texts and images.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::excerpt;
use crate::image::{ImageDetail, ImagePart, ImageSource, ImageUrl, WireImageUrl};

/// Content of a message: a text or several parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Content {
    /// A text.
    Text(String),
    /// Several parts: texts, and images in messages of the roles user and tool.
    #[schema(value_type = Vec<WireContentPart>)]
    Parts(Vec<ContentPart>),
}

impl Content {
    /// The text without images; several parts are joined with line breaks.
    pub fn to_text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                parts.iter().filter_map(ContentPart::text).collect::<Vec<_>>().join("\n")
            }
        }
    }

    /// The images, in their order.
    pub fn images(&self) -> impl Iterator<Item = &Arc<ImagePart>> {
        self.parts().iter().filter_map(ContentPart::image)
    }

    /// The parts; none for a plain text.
    pub fn parts(&self) -> &[ContentPart] {
        match self {
            Self::Text(_) => &[],
            Self::Parts(parts) => parts,
        }
    }

    /// The images, to be replaced.
    pub fn images_mut(&mut self) -> impl Iterator<Item = &mut Arc<ImagePart>> {
        let parts = match self {
            Self::Text(_) => &mut [],
            Self::Parts(parts) => parts.as_mut_slice(),
        };
        parts.iter_mut().filter_map(|part| match part {
            ContentPart::Text(_) => None,
            ContentPart::Image(image) => Some(image),
        })
    }

    /// The result of a tool that failed. Templates have no field for that, so it is written before the text.
    pub(crate) fn failed(self) -> Self {
        const MARK: &str = "Error: ";
        match self {
            Self::Parts(mut parts) if parts.iter().any(|part| part.image().is_some()) => {
                parts.insert(0, ContentPart::plain(MARK.to_owned()));
                Self::Parts(parts)
            }
            texts => Self::Text(MARK.to_owned() + &texts.to_text()),
        }
    }

    /// Parts with images; otherwise the text, whose parts are joined with line breaks.
    pub(crate) fn of_parts(parts: Vec<ContentPart>) -> Self {
        let has_images = parts.iter().any(|part| part.image().is_some());
        let parts = Self::Parts(parts);
        if has_images { parts } else { Self::Text(parts.to_text()) }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of parts")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Content, E> {
        Ok(Content::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Content, E> {
        Ok(Content::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Content, A::Error> {
        let mut parts = Vec::new();
        let mut index = 0;
        while let Some(mut part) = seq.next_element()? {
            if let ContentPart::Image(image) = &mut part {
                // The path within the message; parts of reasoning are removed later.
                Arc::make_mut(image).path = format!("[{index}].image_url");
            }
            parts.push(part);
            index += 1;
        }
        Ok(Content::Parts(parts))
    }
}

/// The content of a message, and the reasoning before it.
pub(super) struct GivenContent {
    pub(super) content: Content,
    pub(super) reasoning: Option<String>,
}

impl<'de> Deserialize<'de> for GivenContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let content = Content::deserialize(deserializer)?;
        let Content::Parts(parts) = content else { return Ok(Self { content, reasoning: None }) };
        let (reasoning, parts): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(ContentPart::is_reasoning);
        let reasoning: Vec<&str> = reasoning.iter().filter_map(ContentPart::text).collect();
        let reasoning = (!reasoning.is_empty()).then(|| reasoning.join("\n"));
        Ok(Self { content: Content::Parts(parts), reasoning })
    }
}

/// The texts of reasoning blocks; hidden or encrypted blocks have none.
pub(super) fn reasoning_of(blocks: &[Value]) -> Option<String> {
    let text = |block: &Value| {
        let text = ["thinking", "text"].into_iter().find_map(|key| block[key].as_str());
        text.filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let texts: Vec<String> = blocks.iter().filter_map(text).collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

/// Types of content parts that are text, with the fields of their texts, and types of reasoning parts.
const TEXT_PARTS: [(&str, &str); 4] =
    [("text", "text"), ("input_text", "text"), ("output_text", "text"), ("refusal", "refusal")];
const REASONING_PARTS: [&str; 2] = ["thinking", "reasoning"];

/// Types of content parts that are images.
const IMAGE_PARTS: [&str; 2] = ["image_url", "input_image"];

/// A content part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ContentPart {
    /// A text.
    Text(TextPart),
    /// An image.
    Image(Arc<ImagePart>),
}

/// A content part: a text, or an image in messages of the roles user and tool.
#[derive(ToSchema)]
#[schema(as = ContentPart)]
#[expect(dead_code, reason = "it describes the part for the OpenAPI document")]
pub(crate) struct WireContentPart {
    /// `text` or `image_url`.
    #[schema(rename = "type")]
    kind: String,
    /// The text, with the type `text`.
    text: Option<String>,
    /// The image, with the type `image_url`. A string is taken as its URL.
    image_url: Option<WireImageUrl>,
}

/// A text: `{"type": "text", "text": ".."}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TextPart {
    /// `text`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text.
    pub text: String,
}

impl ContentPart {
    /// A part with a text.
    pub(crate) fn plain(text: String) -> Self {
        Self::Text(TextPart { kind: "text".to_owned(), text })
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(part) => Some(&part.text),
            Self::Image(_) => None,
        }
    }

    /// The image, if it is one.
    pub fn image(&self) -> Option<&Arc<ImagePart>> {
        match self {
            Self::Text(_) => None,
            Self::Image(image) => Some(image),
        }
    }

    fn is_reasoning(&self) -> bool {
        matches!(self, Self::Text(part) if REASONING_PARTS.contains(&part.kind.as_str()))
    }
}

impl<'de> Deserialize<'de> for ContentPart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ContentPartVisitor)
    }
}

struct ContentPartVisitor;

impl<'de> Visitor<'de> for ContentPartVisitor {
    type Value = ContentPart;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a part: an object with `type`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ContentPart, A::Error> {
        let mut part = GivenPart::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "type" => part.kind = Some(map.next_value()?),
                "text" | "refusal" | "thinking" => {
                    let text: Option<String> = map.next_value()?;
                    part.text = text.map(|text| (key, text)).or(part.text);
                }
                "image_url" => part.image = map.next_value()?,
                "detail" => part.detail = map.next_value()?,
                "annotations" | "cache_control" | "id" | "signature" => {
                    map.next_value::<serde::de::IgnoredAny>()?;
                }
                _ => {
                    if map.next_value::<Option<serde::de::IgnoredAny>>()?.is_some() {
                        part.unknown = Some(key);
                    }
                }
            }
        }
        part.check().map_err(A::Error::custom)
    }
}

/// The fields of a content part.
#[derive(Default)]
struct GivenPart {
    kind: Option<String>,
    /// A text, and the name of its field.
    text: Option<(String, String)>,
    image: Option<ImageUrl>,
    detail: Option<ImageDetail>,
    unknown: Option<String>,
}

impl GivenPart {
    /// # Errors
    /// The reason, in words for a client.
    fn check(self) -> Result<ContentPart, String> {
        let Self { kind, text, image, detail, unknown } = self;
        let kind = kind.ok_or("the part has no `type`")?;
        if IMAGE_PARTS.contains(&kind.as_str()) {
            let unknown = unknown.or(text.map(|(key, _)| key));
            if let Some(key) = unknown {
                return Err(format!("`{}` is not a field of an image part", excerpt(&key)));
            }
            let image = image.ok_or("the part has no `image_url`")?;
            let detail = image.detail.or(detail).unwrap_or_default();
            let source = ImageSource::Url(image.url);
            return Ok(ContentPart::Image(Arc::new(ImagePart {
                source,
                detail,
                path: String::new(),
            })));
        }
        let field = match TEXT_PARTS.iter().find(|(known, _)| *known == kind) {
            Some((_, field)) => Some(*field),
            None => REASONING_PARTS.contains(&kind.as_str()).then_some(""),
        };
        let field = field.ok_or_else(|| {
            let kind = excerpt(&kind);
            format!("content parts of type `{kind}` are not supported, only `text` and `image_url`")
        })?;
        let unknown = unknown.or(image.map(|_| "image_url".to_owned()));
        let unknown = unknown.or(detail.map(|_| "detail".to_owned()));
        if let Some(key) = unknown {
            return Err(format!("`{}` is not a field of a text part", excerpt(&key)));
        }
        match text {
            Some((key, text)) if field.is_empty() || key == field => {
                Ok(ContentPart::Text(TextPart { kind, text }))
            }
            _ => {
                let field = if field.is_empty() { "thinking" } else { field };
                Err(format!("the part has no `{field}`"))
            }
        }
    }
}
