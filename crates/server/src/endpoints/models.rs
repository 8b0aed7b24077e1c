//! GET /v1/models and /v1/models/{id}.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::{Extension, Json};
use candlepower_api::{ErrorResponse, Model, ModelList};

use crate::model::api_error::{ApiError, ApiResult};
use crate::model::served_model::Served;

/// Lists the model names that requests may use.
#[utoipa::path(get, path = "/v1/models", tag = "Models", responses((status = 200, description = "The list of names", body = ModelList)))]
pub(crate) async fn list_models(Extension(model): Extension<Served>) -> Json<ModelList> {
    let data = model.names.iter().map(|name| describe(&model, name)).collect();
    Json(ModelList { object: "list", data })
}

/// Describes the model with this name, which may contain slashes.
#[utoipa::path(
    get,
    path = "/v1/models/{*id}",
    tag = "Models",
    params(("id" = String, Path, description = "The model's name")),
    responses((status = 200, description = "The model", body = Model), (status = 404, description = "The model does not exist", body = ErrorResponse))
)]
pub(crate) async fn retrieve_model(
    Extension(model): Extension<Served>,
    id: Result<Path<String>, PathRejection>,
) -> ApiResult<Json<Model>> {
    // A name that is not UTF-8 belongs to no model.
    let Path(id) = id.map_err(|_| ApiError::model_not_found("?"))?;
    model.check_name(&id)?;
    Ok(Json(describe(&model, &id)))
}

fn describe(model: &Served, name: &str) -> Model {
    Model {
        id: name.to_owned(),
        object: "model",
        created: model.created,
        owned_by: "candlepower",
        root: model.shown_root.clone(),
        max_model_len: model.max_model_len,
        input_modalities: if model.takes_images() { &["text", "image"] } else { &["text"] },
    }
}
