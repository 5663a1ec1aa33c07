// What examples/android uses of Android's SDK.
package android.content

open class Context {
    val filesDir: java.io.File get() = TODO()
    val assets: android.content.res.AssetManager get() = TODO()
}
