"""The embedded demonstration: a small digits classifier and pictures to try it on."""

from uaprop.demo.digits import digits_cnn, digits_images

__all__ = ["digits_cnn", "digits_images"]
