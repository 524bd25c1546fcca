"""Images of a sample, made once the sample's group is known: late preparation.

A collate function that calls a processor runs on each row alone. While it does, a stand-in takes
the place of the processor's image processor: it returns what the real one would, from the sizes of
the images alone, without their pixels. So text and labels are made by the user's own code, and no
image is decoded. The sample keeps its images as they came, in files or encoded, and the arguments
of the call; the real image processor makes the pixels once the sample's group is collated.

    encoded      `LazyImage`: an image as its file, decoded when its pixels are first read
    opened       images in a row of a dataset, opened but not decoded
    options      what an image processor is told, by its own settings or in a call
    qwen_vl      the rule of Qwen2-VL, 2.5 and 3: rows of patches, and a grid per image
    anyres       the rule of LLaVA-NeXT and OneVision: a whole image, and tiles of the best grid
    idefics      the rule of Idefics3 and SmolVLM: tiles of all images in one row
    squares      the rules of Gemma 3 and InternVL: squares, one or several per image
    rules        which rule an image processor follows
    stand_in     `StandIn`: the stand-in, and the calls that it takes
    tokens       whether a sample has as many image tokens as its images make
    late         `LateImages`: what a sample keeps of its images, and how they are made
    preparation  a row, prepared late or at once; whether both make the same
    user_processor  the processor that a collate function uses
"""
