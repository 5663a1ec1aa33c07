import Classifier
import SwiftUI

@main
struct ClassifierApp: App {
    var body: some Scene {
        WindowGroup { ClassifierView() }
    }
}
