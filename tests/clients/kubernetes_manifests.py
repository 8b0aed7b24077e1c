"""Validates manifests strictly against the schemas of several versions of Kubernetes: VERSION.. FILE.."""

import sys

import kubernetes_validate
import yaml


def main(arguments):
    versions = [argument for argument in arguments if argument[0].isdigit()]
    files = [argument for argument in arguments if argument not in versions]
    assert len(versions) == 2 and files, arguments
    for file in files:
        with open(file) as text:
            documents = list(yaml.safe_load_all(text))
        kinds = [document["kind"] for document in documents]
        assert kinds[-2:] == ["Service", "Deployment"], kinds
        for version in versions:
            for document in documents:
                kubernetes_validate.validate(document, version, strict=True)
        check_that_mistakes_are_found(documents[-1], versions[0])


def check_that_mistakes_are_found(deployment, version):
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["livenesProbe"] = container.pop("livenessProbe")
    try:
        kubernetes_validate.validate(deployment, version, strict=True)
    except kubernetes_validate.ValidationError:
        return
    raise AssertionError("a misspelt field passes")


main(sys.argv[1:])
