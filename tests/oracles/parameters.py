"""Parameters that are trained but not published."""

from phaze.spec.model import Model


def training_head_parameters(model: Model) -> int:
    """Return the parameters that BERT's training adds to the published ones: transform, biases,
    classifier.
    """
    if model.head != "masked-lm":
        return 0
    transform = (model.hidden + 1) * model.word_width + model.norm_parameters(model.word_width)
    decoder = model.vocabulary * (1 if model.tied_embeddings else 1 + model.word_width)
    sentence = 2 * (model.hidden + 1) if model.pooler or model.sentence_head else 0
    return model.head_transform * transform + decoder + sentence
