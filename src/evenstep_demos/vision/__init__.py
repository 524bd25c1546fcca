"""``evenstep demo-vision``: a small Qwen2-VL trained on crops of photographs, with fixed
batches and with `evenstep.Even`.

    command  the command line
    crops    photographs that scikit-image ships, and questions about crops of them
    collate  tokenizer, processor and collate function
    model    the model, of transformers
    run      all of it, in order

Rows are raw: images and messages. The collate function makes tokens and pixels of them, and both
runs are given the same one. All else is of ``evenstep demo``: see `evenstep_demos.text`.
"""
