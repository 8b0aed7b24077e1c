//! Images in messages: their sources and their detail, in the forms of the three chat APIs.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::error::{FieldError, excerpt};
use crate::fields::Absent;
use crate::responses::check_fields;

/// An image in a message.
#[derive(Clone, PartialEq, Eq)]
pub struct ImagePart {
    /// The place of its bytes.
    pub source: ImageSource,
    /// The demand for resolution.
    pub detail: ImageDetail,
    /// Path of the source in the request, such as `messages[0].content[1].image_url`.
    pub path: String,
}

/// The place of an image's bytes.
#[derive(Clone, PartialEq, Eq)]
pub enum ImageSource {
    /// A URL of the scheme `data`, `https`, `http` or `file`.
    Url(String),
    /// Bytes in base64.
    Base64 {
        /// Media type, such as `image/png`.
        media_type: String,
        /// The bytes.
        data: String,
    },
}

/// A demand for resolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageDetail {
    /// The model's own size: `auto` or `high`.
    #[default]
    Full,
    /// At most 512 x 512 pixels: `low`.
    Low,
}

impl ImageDetail {
    /// # Errors
    /// The reason, in words for a client.
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" | "high" => Ok(Self::Full),
            "low" => Ok(Self::Low),
            other => Err(format!("`detail` is `{}`; it must be auto, high or low", excerpt(other))),
        }
    }
}

impl fmt::Debug for ImagePart {
    /// Leaves the bytes out, which may be megabytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { detail, path, .. } = self;
        f.debug_struct("ImagePart")
            .field("path", path)
            .field("detail", detail)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ImageSource {
    /// Leaves the bytes out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageSource({} bytes)", self.num_bytes())
    }
}

impl Serialize for ImagePart {
    /// Leaves the bytes out, which may be megabytes.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("type", "image_url")?;
        map.serialize_entry("image_url", &Value::Null)?;
        map.end()
    }
}

impl ImageSource {
    /// Bytes that it takes in memory.
    pub fn num_bytes(&self) -> usize {
        match self {
            Self::Url(url) => url.len(),
            Self::Base64 { data, .. } => data.len(),
        }
    }

    /// Whether the bytes are part of the request.
    pub fn is_inline(&self) -> bool {
        match self {
            Self::Url(url) => {
                url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"))
            }
            Self::Base64 { .. } => true,
        }
    }
}

/// The image of a content part in JSON.
#[derive(ToSchema)]
#[schema(as = ImageUrl)]
#[expect(dead_code, reason = "it describes the part for the OpenAPI document")]
pub(crate) struct WireImageUrl {
    /// A URL of the scheme `data`, in base64. The server's settings may allow `https`, `http` and `file`.
    url: String,
    /// `auto` and `high` are the model's own size, `low` is at most 512 x 512 pixels.
    detail: Option<String>,
}

/// The value of `image_url`: a URL, or an object with `url` and `detail`.
pub(crate) struct ImageUrl {
    pub(crate) url: String,
    pub(crate) detail: Option<ImageDetail>,
}

impl<'de> Deserialize<'de> for ImageDetail {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for ImageUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ImageUrlVisitor)
    }
}

struct ImageUrlVisitor;

impl<'de> Visitor<'de> for ImageUrlVisitor {
    type Value = ImageUrl;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a URL, or an object with `url`")
    }

    fn visit_str<E: Error>(self, url: &str) -> Result<ImageUrl, E> {
        self.visit_string(url.to_owned())
    }

    fn visit_string<E: Error>(self, url: String) -> Result<ImageUrl, E> {
        Ok(ImageUrl { url, detail: None })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ImageUrl, A::Error> {
        let (mut url, mut detail) = (None, None);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "url" => url = Some(map.next_value::<String>()?),
                "detail" => detail = map.next_value()?,
                _ => {
                    map.next_value::<Absent>()?;
                }
            }
        }
        let url = url.ok_or_else(|| A::Error::custom("the image has no `url`"))?;
        Ok(ImageUrl { url, detail })
    }
}

impl ImagePart {
    /// An `input_image` part of /v1/responses at `path`.
    pub(crate) fn of_responses(path: &str, part: &Map<String, Value>) -> Result<Self, FieldError> {
        if part.get("file_id").is_some_and(|id| !id.is_null()) {
            let message = "Files are not stored here: leave `file_id` out, and send the image as a `data:` URL in `image_url`.";
            return Err(FieldError::new(format!("{path}.file_id"), message));
        }
        let detail = match part.get("detail") {
            None | Some(Value::Null) => ImageDetail::default(),
            Some(detail) => ImageDetail::parse(detail.as_str().unwrap_or_default())
                .map_err(|reason| FieldError::new(format!("{path}.detail"), reason + "."))?,
        };
        let path = format!("{path}.image_url");
        match part.get("image_url") {
            Some(Value::String(url)) => {
                Ok(Self { source: ImageSource::Url(url.clone()), detail, path })
            }
            _ => {
                let message = format!("`{path}` must be a string: the URL of the image.");
                Err(FieldError::new(path, message))
            }
        }
    }

    /// The `source` of an `image` block of /v1/messages; `path` is its path.
    pub(crate) fn of_messages(path: String, source: &Value) -> Result<Self, FieldError> {
        let wrong = |key: &str, must_be: &str| {
            let path = format!("{path}.{key}");
            let message = format!("`{path}` must be {must_be}.");
            FieldError::new(path, message)
        };
        let text = |key: &str| source[key].as_str().map(str::to_owned);
        let check = |known: &[&str]| {
            source.as_object().map_or(Ok(()), |fields| check_fields(&path, fields, known))
        };
        let source = match source["type"].as_str() {
            Some("base64") => {
                check(&["type", "media_type", "data"])?;
                let media_type = text("media_type");
                let media_type =
                    media_type.ok_or_else(|| wrong("media_type", "a string, such as image/png"))?;
                let data = text("data").ok_or_else(|| wrong("data", "a string in base64"))?;
                ImageSource::Base64 { media_type, data }
            }
            Some("url") => {
                check(&["type", "url"])?;
                ImageSource::Url(text("url").ok_or_else(|| wrong("url", "a string"))?)
            }
            _ => return Err(wrong("type", "base64 or url")),
        };
        Ok(Self { source, detail: ImageDetail::default(), path })
    }
}
