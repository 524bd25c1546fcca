"""Images of a sample, made once the sample's group is known: late preparation.

A collate function that calls a processor runs on each row alone. Meanwhile a stand-in takes the
place of the processor's image processor: it returns what the real one would, from the sizes of the
images alone, without their pixels. So text and labels are made by the user's own code, and no image
is decoded. The sample keeps its images as they came, in files or encoded, and the arguments of the
call; the real image processor makes the pixels once the sample's group is collated.

    rules           what an image processor returns, from the sizes of images alone
    lazy_images     `LazyImage`: an image as its file, decoded when its pixels are first read
    processors      the processor that a collate function uses; `StandIn`, in the place of its image
                    processor
    late            `LateImages`: what a sample keeps of its images, and how they are made
"""
